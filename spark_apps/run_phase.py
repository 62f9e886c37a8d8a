"""A phase of a run as a Spark app, to submit by hand: `spark-submit run_phase.py PHASE RUN [TABLE]`."""

import typer

from walferry.spark_app import main

typer.run(main)
