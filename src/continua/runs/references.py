"""References to the literature, as plain data that a run can keep."""

import dataclasses
from typing import Any, final

from continua.core.errors import reject


@final
@dataclasses.dataclass(frozen=True)
class Reference:
    """Where a method comes from, and what it is used for here."""

    key: str
    authors: str
    year: int
    title: str
    venue: str
    uses: str = ""

    def __str__(self) -> str:
        used = f" [{self.uses}]" if self.uses else ""
        return f"{self.authors} ({self.year}). {self.title}. {self.venue}.{used}"

    def plain(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, plain: Any) -> "Reference":
        """What `plain` gave."""
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(plain, dict) or not names - {"uses"} <= plain.keys() <= names:
            reject("reference", plain, "it lacks key, authors, year, title or venue", "Write what `citation` gives.")
        return cls(**plain)
