"""Why a worker leaves, as text that can travel: whatever a script's exception says."""

from __future__ import annotations

from ps_worker.process import stopping

MAX_CHARACTERS = 1000  # a coordinator logs half of it, and a message of megabytes would break the stream


def reason_of(error: BaseException | None) -> str:
    """Tells the others why an exception ended a worker's block; empty: nothing went wrong."""
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return ""
    if isinstance(error, SystemExit) and stopping.asked():
        return "stopped by SIGTERM"
    kind = type(error).__name__
    try:
        text = str(error)
        return sendable(f"{kind}: {text}" if text else kind)
    except Exception:  # noqa: BLE001 - its __str__ is the script's
        return sendable(kind)


def sendable(text: str) -> str:
    """The text as UTF-8 can carry it, cut off where it is long."""
    return text[:MAX_CHARACTERS].encode(errors="backslashreplace").decode()[:MAX_CHARACTERS]
