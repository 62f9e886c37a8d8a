"""`python -m walferry.embedded`: what the Makefile calls."""

from __future__ import annotations

import sys

import typer

from walferry.embedded import environment, jars
from walferry.errors import WalferryError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command("jars")
def fetch_jars() -> None:
    """Fetch the servers' jars into the cache folder, unless they are there."""
    jars.java()
    typer.echo(f"jars: {jars.fetch()}")


@app.command()
def up() -> None:
    """Boot source, target and Airflow, leave them running and print their addresses."""
    environment.up()


@app.command()
def down() -> None:
    """Stop what `up` has started."""
    environment.down()


def main() -> int:
    """Run the command; a WalferryError becomes one message on stderr and its exit code."""
    try:
        app(standalone_mode=False)
    except WalferryError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
