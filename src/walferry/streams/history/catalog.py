"""How to reach a catalogue of Iceberg tables. Without pyiceberg, which is an extra."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from walferry.errors import UsageError
from walferry.run.given_spec import Connection

_SECRET = ("password", "secret", "token", "credential", "key", "auth", "connection-string")
"""what the names of properties have that are secrets"""


@dataclass(frozen=True)
class CatalogSettings:
    """How to reach a catalogue: the name that it has for its clients, and pyiceberg's properties."""

    connection: str
    """whose settings these are"""
    name: str
    properties: Mapping[str, str] = field(repr=False)
    """with secrets"""

    def without_secrets(self, text: str) -> str:
        """A text without the secrets that are in it."""
        secrets = {value for name, value in self.properties.items() if any(word in name.lower() for word in _SECRET)}
        for value in self.properties.values():
            if "://" in value and (password := urlsplit(value).password):
                secrets |= {password, unquote(password)}
        for secret in secrets - {""}:
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True)
class TableNames:
    """The tables of a history in the catalogue."""

    namespace: str
    changes: str
    events: str


def settings_of_connection(connection_id: str, known: Connection) -> CatalogSettings:
    """The settings that a connection has: its extra has pyiceberg's properties, and `name`, the name of the catalogue
    (default: the connection's id). Login and password, if given, are those of a database in `uri`.

    Raises UsageError, which never quotes a value.
    """
    given = {name: value for name, value in known.extra.items() if value is not None}
    name = str(given.pop("name", connection_id))
    properties = {key: value if isinstance(value, str) else str(value).lower() for key, value in given.items()}
    if not properties.keys() & {"uri", "type", "py-catalog-impl"}:
        raise UsageError(
            f"connection {connection_id} has no uri in its extra: give pyiceberg's properties of the catalogue, such "
            'as {"uri": "postgresql+psycopg2://host/database"}',
            connection=connection_id,
        )
    if known.login or known.password:
        try:
            url = make_url(properties.get("uri", "")).set(username=known.login or None, password=known.password or None)
        except ArgumentError:
            raise UsageError(
                f"connection {connection_id}: its uri is no database's, which login and password are for; give those "
                "of another catalogue as pyiceberg's properties in the extra",
                connection=connection_id,
            ) from None
        properties["uri"] = url.render_as_string(hide_password=False)
    return CatalogSettings(connection_id, name, properties)
