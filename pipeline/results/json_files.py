"""A JSON file that something else has written, checked against a type before anything is read out of it."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError


def read_as(form: Any, path: Path, remedy: str) -> Any:
    """The content of `path` as an instance of `form` (a pydantic model, a dataclass, a list of them).

    Raises ValueError that names the file, the first thing wrong with it, and the remedy.
    """
    try:
        return _adapter(form).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{path}: {where + ': ' if where else ''}{first['msg']}; {remedy}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; {remedy}") from error


@lru_cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)
