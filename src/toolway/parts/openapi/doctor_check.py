"""The `toolway doctor` check of an HTTP API."""

from __future__ import annotations

from collections.abc import Iterator

from toolway.part_api import Check, TrialStart, format_seconds, split_hint


def check_start(trial: TrialStart) -> Iterator[Check]:
    """Check the trial start of an HTTP API: whether the document can be read and the host can be reached.

    An HTTP API has no protocol version.
    """
    agreement, failure = trial.agreement, trial.failure
    if agreement is not None:
        yield Check("document", "ok", f"{agreement.instructions or 'read'}, in {format_seconds(trial.agreed_at)}")
    elif failure is not None:
        is_document = failure.code.startswith("E-OPENAPI-") or failure.reason.startswith("the document")
        name = "document" if is_document else "connect"
        yield Check(name, "fail", failure.reason, "", *split_hint(failure.hint), failure.code)
    for note in trial.notes:
        yield Check("document", "warn", note, code="E-OPENAPI-DOCUMENT")
