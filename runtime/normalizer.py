"""What happens to a text before it is cut into pieces.

SentencePiece is trained with identity normalization, because its default turns NBSP, U+202F and the
full-width comma into ASCII and so makes French and Chinese targets unreachable. This module is
what stands in its place. Its version is in the manifest: a bundle is read with the rules that it
was trained with, so any change of behaviour here raises NORMALIZER_VERSION.
"""

from __future__ import annotations

import re
import unicodedata

NORMALIZER_VERSION = 1

# More than any script stacks (UAX #15, "Stream-Safe Text Format"). NFC sorts each run of marks in
# quadratic time: 80,000 of them take 3 seconds, a megabyte would take hours.
MAX_COMBINING_RUN = 30

_SURROGATE = re.compile("[\ud800-\udfff]")
# Property White_Space, and the four separators U+001C..U+001F that Python counts as space too.
_SPACES = re.compile("[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
# Categories Cc (without the spaces above) and Cf. Kept out of it, because they carry meaning: ZWNJ
# and ZWJ (Persian, Indic scripts, emoji), and the prepended concatenation marks (U+0600..0605,
# 06DD, 070F, 0890, 0891, 08E2, 110BD, 110CD) and hieroglyph joiners, which are visible.
_DROPPED = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f"
    "\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]+"
)
_INVISIBLE = re.compile("[\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef ]*")


def normalize_source(text: str) -> str:
    """The form in which the model reads a source line; "" if nothing visible is left.

    Lone surrogates become U+FFFD; every space, tab, line and paragraph separator becomes U+0020;
    controls and invisible format characters (bidi marks, soft hyphens, zero-width spaces, tags) are
    dropped, except ZWJ, ZWNJ and variation selectors; then NFC; runs of spaces become one, and none
    stand at the ends. Of a run of combining marks the first MAX_COMBINING_RUN are kept.
    Idempotent.
    """
    text = replace_surrogates(text)
    text = _DROPPED.sub("", text)
    # After dropping, so that two spaces around a dropped character count as one run.
    text = _SPACES.sub(" ", text).strip(" ")
    # Capped again after NFC: a few marks (U+0344) become two, and the result must be stable.
    text = _cap_combining_runs(unicodedata.normalize("NFC", _cap_combining_runs(text)))
    return "" if _INVISIBLE.fullmatch(text) else text


def normalize_target(text: str) -> str:
    """Targets keep their spaces and marks: only NFC, and U+FFFD for lone surrogates."""
    return unicodedata.normalize("NFC", replace_surrogates(text))


def replace_surrogates(text: str) -> str:
    """Each lone surrogate, which no encoding can write, becomes U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def _cap_combining_runs(text: str) -> str:
    if len(text) <= MAX_COMBINING_RUN or text.isascii():
        return text
    kept: list[str] = []
    run = 0
    for char in text:
        run = run + 1 if unicodedata.combining(char) else 0
        if run <= MAX_COMBINING_RUN:
            kept.append(char)
    return "".join(kept)
