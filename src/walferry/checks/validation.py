"""Validates a frame with a suite, writes Data Docs, and says whether the gate is open."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from walferry.amounts import amount, amount_of_each
from walferry.background import begun
from walferry.checks.suites import suite
from walferry.errors import WalferryError

if TYPE_CHECKING:
    import pandas as pd

_UNUSED = frozenset({"scipy.stats", "altair"})
"""packages that Great Expectations imports for expectations that no suite uses: over a third of its import time"""
_SWITCH_SECONDS = 0.0005
"""after this the import yields to threads that move bytes; by default they wait ten times as long at each chunk"""


@dataclass(frozen=True)
class GateFailure:
    """An expectation that was not met: `regions` names the rows of the frame, `detail` shows values."""

    expectation: str
    severity: str
    regions: list[str]
    detail: str


@dataclass(frozen=True)
class GateResult:
    """A gate's result. `passed`: no critical expectation failed; `failures` include warnings."""

    suite: str
    run_name: str
    passed: bool
    failures: list[GateFailure]
    docs_index: Path


def validate(
    suite_name: str,
    frame: pd.DataFrame,
    *,
    docs: Path,
    run_name: str,
    parameters: Mapping[str, Any] | None = None,
) -> GateResult:
    """Validate `frame` (one row per region, file or schema; column `region` names it) with the suite `suite_name`.

    Data Docs are kept in `docs`/`run_name`: two runs never write the same files. `parameters` fill in the suite's
    `{"$PARAMETER": …}`. Raises UsageError for an unknown suite, WalferryError when Great Expectations cannot be used
    or has not evaluated every expectation.
    """
    gx = _great_expectations()
    expectations = suite(suite_name)
    folder = docs.absolute() / run_name.replace("/", "_")
    folder.mkdir(parents=True, exist_ok=True)
    context = gx.get_context(mode="file", project_root_dir=str(folder))
    context.variables.analytics_enabled = False
    context.variables.progress_bars = {"globally": False}
    context.variables.save()

    source = context.data_sources.add_or_update_pandas("walferry")
    batch = source.add_dataframe_asset(suite_name).add_batch_definition_whole_dataframe("whole")
    definition = context.validation_definitions.add_or_update(
        gx.ValidationDefinition(
            name=suite_name,
            data=batch,
            suite=context.suites.add_or_update(gx.ExpectationSuite(name=suite_name, expectations=list(expectations))),
        )
    )
    checkpoint = context.checkpoints.add_or_update(
        gx.Checkpoint(
            name=suite_name,
            validation_definitions=[definition],
            actions=[gx.checkpoint.UpdateDataDocsAction(name="data_docs")],
            result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["table", "region"]},
        )
    )
    outcome = checkpoint.run(
        batch_parameters={"dataframe": frame},
        expectation_parameters=dict(parameters or {}),
        run_id=gx.RunIdentifier(run_name=run_name),
    )
    results = [result for run in outcome.run_results.values() for result in run.results]
    if len(results) < len(expectations):
        raise WalferryError(
            f"only {len(results)} of {len(expectations)} expectations of {suite_name} were evaluated: "
            "the gate stays shut",
            suite=suite_name,
        )
    failures = [_failure(result) for result in results if not result.success]
    return GateResult(
        suite=suite_name,
        run_name=run_name,
        passed=all(failure.severity != "critical" for failure in failures),
        failures=failures,
        docs_index=folder / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html",
    )


def require_passed(result: GateResult) -> None:
    """Raise WalferryError, which names the suite and counts what failed, unless the gate is open; fact `regions`."""
    if result.passed:
        return
    critical = [failure for failure in result.failures if failure.severity == "critical"]
    regions = sorted({region for failure in critical for region in failure.regions})
    shown = amount_of_each(Counter(region.partition(" ")[0] for region in regions), "place")
    whats = "; ".join(f"{failure.expectation}: {failure.detail}" for failure in critical[:5])
    raise WalferryError(
        f"the checks {result.suite} of {result.run_name} failed at "
        f"{f'{shown}, the first: {regions[0]}' if regions else 'the whole frame'}: {whats}; see {result.docs_index}",
        suite=result.suite,
        regions=regions,
        docs_index=str(result.docs_index),
    )


def import_ahead() -> None:
    """Import Great Expectations in another thread, which saves a later `validate` some seconds."""

    def load() -> None:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        try:
            with suppress(WalferryError):  # `validate` will raise it
                _great_expectations()
        finally:
            sys.setswitchinterval(usual)

    begun(load, "import Great Expectations")


def _great_expectations() -> Any:
    """Import Great Expectations without telemetry and without its 200 lines of log."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    try:
        with _without_collecting(), _left_for_later():
            import great_expectations as gx
            import great_expectations.checkpoint
    except ImportError as error:
        raise WalferryError("the checks need Great Expectations: pip install 'walferry[checks]'") from error
    except SystemExit as error:
        # It imports PySpark, which takes `python -c` for a doctest run without gRPC and exits with 0: the gate would be
        # skipped silently.
        raise WalferryError(
            "Great Expectations cannot be imported under `python -c`: run a file or a module"
        ) from error
    # Some of its loggers are named after files, so the level of the package's logger does not apply to them.
    for name in list(logging.root.manager.loggerDict):
        if "great_expectations" in name:
            logging.getLogger(name).setLevel(logging.WARNING)
    return gx


class _Later(MetaPathFinder):
    """Finds packages that are loaded when they are first used."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """How to load a package in _UNUSED; None for any other."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname in _UNUSED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def _left_for_later() -> Iterator[None]:
    """Postpone loading the packages in _UNUSED that the block imports until they are first used."""
    later = _Later()
    sys.meta_path.insert(0, later)
    try:
        yield
    finally:
        # In a new list: a thread that imports something now goes through the old one, and would pass over a finder.
        sys.meta_path = [finder for finder in sys.meta_path if finder is not later]


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Keep the garbage collector away from the objects of a large import, which saves about a second."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _failure(result: Any) -> GateFailure:
    config = result.expectation_config
    columns = [config.kwargs[key] for key in ("column", "column_A", "column_B") if key in config.kwargs]
    expectation = f"{config.type}({', '.join(columns)})"
    if any("exception_message" in info and info["raised_exception"] for info in _exceptions(result.exception_info)):
        messages = {str(info["exception_message"]) for info in _exceptions(result.exception_info)}
        # An expectation that could not be evaluated was not met, whatever its severity.
        return GateFailure(expectation, "critical", [], f"could not be evaluated: {'; '.join(sorted(messages))}")
    found = result.result
    rows = found.get("unexpected_index_list") or []
    regions = sorted({f"{row['table']} {row['region']}".strip() for row in rows})
    if "unexpected_count" in found:
        detail = amount(found["unexpected_count"], "row")
    else:
        detail = f"found {found['observed_value']}"
    if rows:
        values = {key: value for key, value in rows[0].items() if key not in ("table", "region")}
        detail += f", first {values}"
    severity = getattr(config.severity, "value", config.severity)
    return GateFailure(expectation, str(severity), regions, detail)


def _exceptions(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Great Expectations returns one mapping, or one per metric."""
    return [info] if "raised_exception" in info else list(info.values())
