"""Texts for evaluation and calibration, shipped with the package; `README.md` beside them gives source and licence."""

import re
from pathlib import Path

from golden.errors import UserError

__all__ = ["CALIBRATION", "TUNING", "names", "read"]

CALIBRATION = "code"
"""Name of the text that tables are calibrated on."""

TUNING = (CALIBRATION, "manual")
"""Names of the texts that settings are searched on; the others are for evaluation only."""

FOLDER = Path(__file__).parent
FILES = {
    "legal": ("GPL-3.txt", "GFDL-1.3.txt"),
    "prose": ("prose.txt",),
    "tech": ("tech.txt",),
    "code": ("code.txt",),
    "manual": ("manual.txt",),
}


def names() -> list[str]:
    """Names of the evaluation texts."""
    return [name for name in FILES if name not in TUNING]


def read(name: str | Path) -> str:
    """The text called `name`, or the contents of the UTF-8 file at that path; `UserError` when there is neither.

    The licences of `legal` are shipped as they were published, with hard line ends; here each paragraph is one line.
    """
    if isinstance(name, str) and name in FILES:
        parts = [(FOLDER / file).read_text(encoding="utf-8") for file in FILES[name]]
        return "\n\n".join(map(_unwrap, parts)) if name == "legal" else "".join(parts)
    shown = str(name) if len(str(name)) <= 200 else f"{str(name)[:40]}..."
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"the file {shown} is not UTF-8 text: byte {error.start} cannot be decoded") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"no text {shown!r}: it is none of {', '.join(FILES)}, and no readable file ({reason})"
        ) from error


def _unwrap(text: str) -> str:
    """Each paragraph of `text` on one line, paragraphs separated by one empty line."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
