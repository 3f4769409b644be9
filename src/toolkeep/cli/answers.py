"""What a call brought back, as people see it, as programs read it, and as files."""

from __future__ import annotations

import base64
import binascii
import errno
import json
import mimetypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from toolkeep.cli.ending import Misused
from toolkeep.cli.screen import Screen, one_line

if TYPE_CHECKING:
    from toolkeep import CallResult

Block = Mapping[str, Any]
Saved = Mapping[int, Path]
"""By the block's place in the content."""

MOST_TRIES = 1000
_ENDINGS = {"audio/wav": ".wav", "audio/webm": ".weba", "image/webp": ".webp"}
"""That `mimetypes` of 3.11 does not know."""


def show(screen: Screen, result: CallResult, saved: Saved) -> None:
    """A tool's own error goes to standard error; with `--json` all of it is the document."""
    if screen.json:
        screen.give(as_dict(result, saved))
        return
    lines = [_shown(block, saved.get(place)) for place, block in enumerate(_blocks(result))]
    if not lines and result.data is not None:
        lines = [json.dumps(result.data, indent=2, ensure_ascii=False)]
    text = "\n".join(lines)
    if result.is_error:
        screen.note(f"error: {result.server}.{result.tool} says: {text or 'nothing'}")
    elif text:
        screen.say(text)


def as_dict(result: CallResult, saved: Saved) -> dict[str, Any]:
    return {
        "server": result.server,
        "tool": result.tool,
        "is_error": result.is_error,
        "content": _blocks(result),
        "structured_content": result.data,
        "meta": dict(result.meta),
        "attempts": result.attempts,
        "duration": result.duration,
        "saved": [str(path) for path in saved.values()],
    }


def _blocks(result: CallResult) -> list[Block]:
    found = result.raw.get("content")
    blocks = cast("list[object]", found) if isinstance(found, list) else []
    return [cast("Block", one) for one in blocks if isinstance(one, Mapping)]


def _shown(block: Block, path: Path | None) -> str:
    if block.get("type") == "text":
        return str(block.get("text", ""))
    where = f" -> {path}" if path else ""
    return f"[{_described(block)}]{where}"


def _described(block: Block) -> str:
    kind = str(block.get("type"))
    inner = _resource(block) if kind == "resource" else block
    data = _bytes_of(block)
    size = f"{len(data)} bytes" if data is not None else ""
    parts = (kind, inner.get("mimeType"), inner.get("uri"), inner.get("name"), size)
    return one_line(" ".join(str(part) for part in parts if part))


def made(directory: str) -> Path:
    """The folder that results are saved to. To be had before the call: afterwards is too late."""
    folder = Path(directory).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misused(f"--output {directory}: {error.strerror}") from None
    return folder


def save(screen: Screen, result: CallResult, folder: Path) -> tuple[dict[int, Path], bool]:
    """Each image, sound and resource as a file of its own; none is overwritten. And whether all
    of them were: those that cannot be are noted."""
    saved: dict[int, Path] = {}
    whole = True
    for place, block in enumerate(_blocks(result)):
        data = _bytes_of(block)
        if data is None:
            continue
        inner = _resource(block) if block.get("type") == "resource" else block
        try:
            saved[place] = _written(folder, result.tool, inner.get("mimeType"), data)
        except OSError as error:
            whole = False
            screen.note(f"error: not saved: {_described(block)}: {folder}: {error.strerror}")
    return saved, whole


def _written(folder: Path, tool: str, mime: object, data: bytes) -> Path:
    """Under a name that is ours: a server's may lead anywhere."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", tool)[:60] or "result"
    kind = str(mime or "")
    ending = _ENDINGS.get(kind) or mimetypes.guess_extension(kind) or ".bin"
    for number in range(1, MOST_TRIES):
        path = folder / f"{stem}-{number}{ending}"
        try:
            with path.open("xb") as file:
                file.write(data)
        except FileExistsError:
            continue
        return path
    raise FileExistsError(errno.EEXIST, f"it is full of files of {tool}")


def _resource(block: Block) -> Block:
    found = block.get("resource")
    return cast("Block", found) if isinstance(found, Mapping) else {}


def _bytes_of(block: Block) -> bytes | None:
    """None for what has none: text, and links."""
    match block.get("type"):
        case "image" | "audio":
            return decoded(block.get("data"))
        case "resource":
            inner = _resource(block)
            text = inner.get("text")
            return text.encode() if isinstance(text, str) else decoded(inner.get("blob"))
        case _:
            return None


def decoded(data: object) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True) if isinstance(data, str) else None
    except (binascii.Error, ValueError):
        return None
