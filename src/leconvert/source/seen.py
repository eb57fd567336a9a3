"""What checks report, before anything is decided about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from leconvert.source.catalogue import CATALOGUE
from leconvert.text import shown

__all__ = ["Notes", "Remark", "Sightings", "counted", "said_of_paths", "shown"]


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that a check saw.

    Attributes:
        code: One of the catalogue's.
        message: What was seen, in one sentence.
        episode: The episode's index in the source, where it is about one.
        stream: The stream, where it is about one.
        path: The file relative to the source, where it is about one.
        feature: The feature, where it is about one.
        severity: As the catalogue says, unless the case says otherwise.
        is_acceptable: Whether it can be accepted where others of its code can.
        helps: Flags of the catalogue's that help in this case; None where all do.
    """

    code: str
    message: str
    episode: int | None = None
    stream: str | None = None
    path: str | None = None
    feature: str | None = None
    severity: str = ""
    is_acceptable: bool = True
    helps: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not self.severity:
            object.__setattr__(self, "severity", CATALOGUE[self.code].severity)

    @property
    def order(self) -> tuple[int, str, str, str, str, str]:
        """Sorts what is about the dataset first, then by episode."""
        episode = -1 if self.episode is None else self.episode
        stream, feature, path = self.stream or "", self.feature or "", self.path or ""
        return (episode, stream, self.code, feature, path, self.message)


class Sightings:
    """The same thing seen in many episodes: it makes one remark, which says in how many.

    What was seen first is the example. Memory is bounded by the kinds of things, not by episodes.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], tuple[Remark, int]] = {}

    def add(self, remark: Remark, episodes: int = 1) -> None:
        """Note that something was seen in further episodes.

        Args:
            remark: It; its message tells the first case.
            episodes: In how many.
        """
        kind = (remark.code, remark.stream or "", remark.feature or "", remark.helps)
        example, before = self._seen.get(kind, (remark, 0))
        self._seen[kind] = (example, before + episodes)

    def merge(self, later: Sightings) -> None:
        """Add what was seen in later episodes."""
        for remark, episodes in later._seen.values():
            self.add(remark, episodes)

    def remarks(self) -> Iterator[Remark]:
        """Yield a remark for each kind of thing."""
        for example, episodes in self._seen.values():
            more = f" {counted(episodes, 'episode')} are like this." if episodes > 1 else ""
            yield replace(example, message=example.message + more, episode=None)


@dataclass(slots=True)
class Notes:
    """What is said about the slices of some episodes, one slice after the other.

    Attributes:
        remarks: About single episodes.
        sightings: About many.
        episode: Index of the episode that is looked at.
        stream: Its stream.
        file: Its file.
        folder_length: Characters of the file's name up to what is relative to the source.
    """

    remarks: list[Remark] = field(default_factory=list)
    sightings: Sightings = field(default_factory=Sightings)
    episode: int = 0
    stream: str = ""
    file: str = ""
    folder_length: int = 0

    @property
    def path(self) -> str:
        """The file, relative to the source."""
        return self.file[self.folder_length :]

    def say(
        self,
        code: str,
        message: str,
        *,
        feature: str | None = None,
        severity: str = "",
        is_acceptable: bool = True,
        helps: tuple[str, ...] | None = None,
    ) -> None:
        """Say something about this slice alone."""
        place = self.episode, self.stream, self.path
        self.remarks.append(Remark(code, message, *place, feature, severity, is_acceptable, helps))

    def sight(
        self,
        code: str,
        message: str,
        *,
        feature: str | None = None,
        path: str | None = None,
        severity: str = "",
        helps: tuple[str, ...] | None = None,
    ) -> None:
        """Say something that may hold for many slices of this stream."""
        self.sightings.add(
            Remark(
                code,
                message,
                None,
                self.stream,
                path or self.path,
                feature,
                severity,
                helps=helps,
            )
        )


def said_of_paths(feature: str, where: str = "") -> str:
    """Return what is said of images that are paths.

    Args:
        feature: The images.
        where: Which of them; all by default.
    """
    return (
        f"The images {shown(feature)} are no files{where}, but their paths at best; put the files "
        'into the tables first, as "Images as paths" in docs/howto/broken-datasets.md does.'
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 episode`` or ``3 episodes``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
