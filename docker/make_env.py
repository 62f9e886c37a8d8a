"""Write docker/.env: the names of .env.example, each with a random value. Needs nothing but Python.

    python3 docker/make_env.py

A file that is there stays as it is: new passwords would not fit the databases in the volumes.
"""

from __future__ import annotations

import base64
import os
import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def filled(example: str) -> str:
    """The text of .env.example with a random value behind every empty name."""
    lines = []
    for line in example.splitlines():
        name, equals, value = line.partition("=")
        if equals and not value and not line.startswith("#"):
            # A Fernet key is padded base64 of 32 bytes; the others hold only what needs no quoting in a URL.
            value = (
                base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()
                if name.endswith("FERNET_KEY")
                else secrets.token_urlsafe(64 if name.endswith("JWT_SECRET") else 24)
            )
            line = f"{name}={value}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def write(path: Path, example: Path = FOLDER / ".env.example") -> bool:
    """Write `path`, readable by its owner only; False when it is there already."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(filled(example.read_text(encoding="utf-8")))
    return True


if __name__ == "__main__":
    if write(FOLDER / ".env"):
        print("docker/.env is written; the password of Airflow's user admin is AIRFLOW_ADMIN_PASSWORD in it")
    else:
        sys.exit("docker/.env is there already and stays as it is")
