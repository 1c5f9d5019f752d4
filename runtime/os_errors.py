"""What the operating system refuses, in words that say what to do about it."""

from __future__ import annotations

import errno

_SPACE = "free some space there, or write elsewhere"
_ALLOWED = "expected a place that you may use: change its permissions, or name another"
_ADVICE = {
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or write elsewhere",
    errno.EACCES: _ALLOWED,
    errno.EPERM: _ALLOWED,
    errno.EROFS: "expected a place that can be written; name another",
    errno.ENOENT: "expected it, and the directories it stands in, to be there: check the name",
    errno.ENOTDIR: "expected a directory where a part of that name is a file: check the name",
    errno.EISDIR: "expected a file; name one",
    errno.EEXIST: "something is there already; remove it, or name another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EIO: "the disk or device fails; check it, or use another",
}
_DEFAULT = "see to that, and run it again"


def explain(error: OSError, place: object = None) -> str:
    """What happened, where, and what to do. place: None takes what the error itself names, and ""
    names none."""
    place = error.filename if place is None else place
    if isinstance(place, bytes):
        place = place.decode(errors="backslashreplace")
    reason = error.strerror or str(error) or type(error).__name__
    where = f"{place}: " if place not in (None, "") else ""
    return f"{where}{reason}; {_ADVICE.get(error.errno or 0, _DEFAULT)}"
