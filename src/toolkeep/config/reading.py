"""Reading a configuration's files, and those it names: the only module here that does.

Whatever the disk holds, it is a text or a `ConfigError`: no device is waited for, nothing large is
read, and no byte that is not UTF-8 is guessed at.
"""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path

from toolkeep.errors import ConfigError

LARGEST = 1024 * 1024
"""Bytes. A thousand servers have less."""

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)


def shown(path: Path, cwd: Path) -> str:
    """As short as it is clear."""
    try:
        return str(path.relative_to(cwd))
    except ValueError:
        return str(path)


def exists(path: Path) -> bool:
    """Also if it may not be read: that is then told, not passed over."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        return True
    return True


def text_of(path: Path, file: str) -> str:
    content = _content(path, file)
    if content.startswith(_WIDE) or b"\0" in content[:4]:
        raise ConfigError("it is UTF-16 or UTF-32", remedy="Save it as UTF-8", file=file)
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        place = f"{file}:{line}"
        raise ConfigError("it is not UTF-8", remedy="Save it as UTF-8", file=place) from None
    if not text.strip():
        raise ConfigError("it is empty", remedy="Fill it, or remove it", file=file)
    return text


def _content(path: Path, file: str) -> bytes:
    try:
        # Asked before it is opened: opening a pipe waits for whoever writes to it.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ConfigError("it is not a file", remedy="Name a file", file=file)
        with open(path, "rb") as opened:
            content = opened.read(LARGEST + 1)
    except FileNotFoundError:
        raise ConfigError("there is no such file", remedy="Correct the path", file=file) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the path is none"
        remedy = "Make it readable, or name another"
        raise ConfigError(f"it cannot be read: {reason}", remedy=remedy, file=file) from None
    if len(content) > LARGEST:
        remedy = "Name another; no text of ours is as long"
        raise ConfigError(f"it has more than {LARGEST} bytes", remedy=remedy, file=file)
    return content
