"""`python -m walferry.embedded`: the commands that the Makefile calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from walferry.embedded import environment, jars
from walferry.errors import WalferryError
from walferry.hbase.address import ClusterAddress
from walferry.security import Kerberos, Security

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.command("jars")
def fetch_jars(
    versions: Annotated[list[str] | None, typer.Argument(help="of HBase")] = None,
    kafka: Annotated[bool, typer.Option("--kafka", help="also those of a Kafka broker, for the tests")] = False,
) -> None:
    """Fetch the servers' jars into the cache folder, unless it has them: the newest version's, or those named."""
    jars.java()
    for version in versions or [jars.NEWEST]:
        typer.echo(f"jars: {jars.fetch(version)}")
    if kafka:
        typer.echo(f"jars: {jars.fetch_kafka()}")


@app.command()
def up() -> None:
    """Boot source, target and Airflow, leave them running and print their addresses."""
    environment.up()


@app.command()
def down() -> None:
    """Stop what `up` started."""
    environment.down()


@app.command()
def demo() -> None:
    """Move two live tables between two real clusters and show the report; leaves nothing running."""
    from walferry.embedded.demo import demo

    demo()


@app.command()
def writer(
    endpoints: Path = environment.RUN / "endpoints.json",
    status: Path = environment.RUN / "writer.json",
    stop_file: Path = environment.RUN / "writer.stop",
    rows: int = 200_000,
    cells_per_second: int = 2_000,
) -> None:
    """Load the demo's two tables on the source, then write until the stop file appears or writes are refused."""
    from walferry.embedded.demo_writer import write

    source = json.loads(endpoints.read_text())["source"]
    fields = {key: source[key] for key in ("zookeeper", "znode", "webhdfs", "rootdir", "thrift")}
    if "principal" in source:
        fields["security"] = Security(Kerberos(source["principal"], source["keytab"]))
    count = write(ClusterAddress(**fields), status, stop_file, rows=rows, cells_per_second=cells_per_second)
    typer.echo(f"{count.state}; {count.rows_loaded} rows loaded, {count.cells_written} cells written since")


def main() -> None:
    """Run the command; a WalferryError becomes one message on stderr and its exit code, Ctrl-C 130."""
    try:
        app()
    except WalferryError as error:
        print(error.message, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
