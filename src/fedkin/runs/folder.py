"""Run folders: everything one execution read and produced. The one place that talks to the disk.

config.toml       complete and resolved: `fedkin run config.toml` repeats the run
rounds.jsonl      a line a round
graph.npz         who is related to whom, for methods that look at it
collaboration/    xi (m, m) of recorded rounds
checkpoint/       the latest complete round, replaced atomically
models/           for each client the model to use
outputs.safetensors   what every model answered on the test samples at the closing exchange
summary.json      what came out
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..base import files
from ..base.wording import did_you_mean
from ..errors import FedkinError
from ..evidence.comparison import round_taken
from ..evidence.estimates import Estimate
from ..evidence.outputs import Outputs
from ..evidence.records import Line, Summary
from .config import Config, read_toml, resolve, to_toml

GRAPH = "graph.npz"


class RunError(FedkinError):
    """A run folder cannot be used as asked; the sentence says why and what would be right."""


# ---- writing ----


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """As `base.files.replacing`, with a sentence on how to go on where that fails."""
    try:
        with files.replacing(path) as new:
            yield new
    except (OSError, SafetensorError) as error:
        raise _unwritten(path, error) from None


def replace_file(path: Path, content: bytes) -> None:
    with replacing(path) as new:
        new.write_bytes(content)


def _unwritten(path: Path, error: Exception) -> RunError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RunError(
        f"{path} cannot be written: {why}. Nothing that was saved before is lost; make room, then go on with "
        f"`fedkin resume` on the run's folder."
    )


def file_name(client: str) -> str:
    """A client's name as a file's, whatever characters it has."""
    return quote(client, safe=" ").replace(".", "%2E") if client.startswith(".") else quote(client, safe=" ")


class Writer:
    """Writes one run folder."""

    def __init__(self, path: Path, made: Sequence[Path] = ()) -> None:
        self.path, self.made = path, made
        """The run's folder, and those that were made for it, the innermost first."""

    @staticmethod
    def create(path: Path, config: Config) -> Writer:
        """A new run folder; refused where another run, or anything else, already is."""
        taken = _taken(path)
        if taken:
            raise RunError(f"{path} {taken}; choose another folder with --out, or remove it.")
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"The folder {path} cannot be made: {error.strerror}. Choose another with --out.") from None
        writer = Writer(path, made)
        try:
            replace_file(path / "config.toml", to_toml(config.model_dump(mode="json")).encode())
        except RunError as error:
            writer.discard()
            raise RunError(str(error).partition(". ")[0] + "; choose another folder with --out.") from None
        return writer

    def reopen(self, config: Config) -> None:
        """A finished run is one no more, and goes on by this configuration. First the summary goes: in between, it is a
        run that has yet to be closed."""
        (self.path / "summary.json").unlink(missing_ok=True)
        replace_file(self.path / "config.toml", to_toml(config.model_dump(mode="json")).encode())

    def discard(self) -> None:
        """A new run that came to nothing before its first round ended leaves nothing behind."""
        if not (self.path / "rounds.jsonl").exists():
            for file in ("config.toml", GRAPH):
                (self.path / file).unlink(missing_ok=True)
            with suppress(OSError):  # something else has come into the folder
                for folder in self.made:
                    folder.rmdir()

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint" / "state.safetensors"

    def line(self, record: Mapping[str, Any]) -> None:
        """Appends a round to rounds.jsonl, flushed; the whole line or nothing."""
        path = self.path / "rounds.jsonl"
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(plain(record), allow_nan=False) + "\n")
        except OSError as error:
            os.truncate(path, before)
            raise _unwritten(path, error) from None

    def cut_back(self, round: int) -> list[Line]:
        """Drops what lies after a round (a resumed run writes it again) and returns the lines that stay."""
        kept, text = list[Line](), ""
        for line, record in _lines(self.path / "rounds.jsonl"):
            if record.round > round or record.final:
                break
            kept.append(record)
            text += f"{line}\n"
        told = kept[-1].round if kept else 0
        if told < round:
            raise RunError(
                f"The checkpoint in {self.path} is of round {round}, but the whole lines of rounds.jsonl end with "
                f"round {told}. Remove {self.checkpoint} to start from round 1."
            )
        replace_file(self.path / "rounds.jsonl", text.encode())
        for file in (self.path / "collaboration").glob("round-*.npy"):
            if int(file.stem.removeprefix("round-")) > round:
                file.unlink()
        for folder in ("", "checkpoint", "models"):
            for half in (self.path / folder).glob(".tmp*"):  # where safetensors was writing when the run was killed
                half.unlink()
        return kept

    def graph(self, graph: Tensor, names: Sequence[str]) -> None:
        """Who is related to whom; a file that `--graph` takes, too."""
        content = io.BytesIO()
        np.savez(content, graph=graph.cpu().numpy(), names=np.array(names, dtype=np.str_))
        replace_file(self.path / GRAPH, content.getvalue())

    def collaboration(self, round: int, xi: Tensor) -> None:
        folder = self.path / "collaboration"
        folder.mkdir(exist_ok=True)
        content = io.BytesIO()  # np.save into a file says nothing when the disk is full
        np.save(content, xi.detach().cpu().numpy().astype(np.float32), allow_pickle=False)
        replace_file(folder / f"round-{round:04d}.npy", content.getvalue())

    def forget_collaboration(self, round: int) -> None:
        (self.path / "collaboration" / f"round-{round:04d}.npy").unlink(missing_ok=True)

    def model(self, client: str, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """One client's model: named tensors, and what is needed to load it again."""
        folder = self.path / "models"
        folder.mkdir(exist_ok=True)
        with replacing(folder / f"{file_name(client)}.safetensors") as new:
            save_file({n: t.contiguous().cpu() for n, t in tensors.items()}, new, {"fedkin": json.dumps(plain(about))})

    def outputs(self, outputs: Outputs) -> None:
        """What the models answered on the test samples."""
        tensors, about = outputs.to_file()
        with replacing(self.path / "outputs.safetensors") as new:
            save_file({n: t.contiguous() for n, t in tensors.items()}, new, {"fedkin": json.dumps(plain(about))})

    def summary(self, summary: Mapping[str, Any]) -> None:
        text = json.dumps(plain(summary), indent=2, allow_nan=False)
        replace_file(self.path / "summary.json", text.encode())


def _taken(path: Path) -> str:
    """Why a new run cannot be put here; empty where it can."""
    if not path.exists():
        return ""
    if not path.is_dir():
        return "is not a folder"
    if (path / "config.toml").exists():
        unfinished = not (path / "summary.json").exists()
        return (
            f"holds an unfinished run (`fedkin resume {path}` goes on with it)" if unfinished else "holds another run"
        )
    # A config.toml.new alone is what a run leaves that was killed before it began.
    return "is not empty" if {p.name for p in path.iterdir()} - {"config.toml.new"} else ""


def plain(value: Any) -> Any:
    """For JSON: NaN and infinity become null, tensors lists."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


# ---- reading ----


def read_lines(path: Path) -> list[Line]:
    """The whole lines of rounds.jsonl; a last line that a crash cut short is left out."""
    return [record for _, record in _lines(path)]


def _lines(path: Path) -> Iterator[tuple[str, Line]]:
    """Each line as it stands there, and what it says."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            record = Line.read(json.loads(line))
        except ValueError:
            return
        yield line, record


class RunFolder:
    """A run folder to read: `.summary`, `.rounds`, `.config`, `.collaboration()`, `.outputs()`, `.scores()`."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not (self.path / "config.toml").exists():
            inside = sorted(p.parent.name for p in self.path.glob("*/config.toml"))
            hint = f" Runs in it: {', '.join(inside[:8])}{', …' if len(inside) > 8 else ''}." if inside else ""
            hint += " In Python, fedkin.open opens them side by side." if len(inside) > 1 else ""
            raise RunError(f"{self.path} is not a run folder: it has no config.toml.{hint}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_toml(self.path / "config.toml")

    def resolved(self) -> Config:
        return resolve(self.config)

    @property
    def complete(self) -> bool:
        return (self.path / "summary.json").exists()

    @cached_property
    def summary(self) -> Summary:
        if not self.complete:
            raise RunError(f"The run in {self.path} is not finished; continue it with `fedkin resume {self.path}`.")
        path = self.path / "summary.json"
        try:
            return Summary.read(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise RunError(
                f"{path} is damaged ({error}); remove it, and `fedkin resume {self.path}` writes it again."
            ) from None

    @cached_property
    def rounds(self) -> list[Line]:
        return read_lines(self.path / "rounds.jsonl")

    @property
    def graph(self) -> NDArray[np.floating[Any]] | None:
        """(m, m) who is related to whom, in the order of the clients, newcomers last; None where the method has no
        use for a graph."""
        path = self.path / GRAPH
        if not path.exists():
            return None
        try:
            return files.read_arrays(path)["graph"]
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path} is damaged ({error}); remove it, and a run that goes on makes it again.") from None

    @property
    def recorded(self) -> list[int]:
        """Rounds whose xi is on disk."""
        files = (self.path / "collaboration").glob("round-*.npy")
        return sorted(int(f.stem.removeprefix("round-")) for f in files)

    def collaboration(self, round: int | None = None) -> NDArray[np.float32] | None:
        """(m, m) xi of a round, by default of the one that the headline's scores stand on; None where the method has
        none."""
        if not self.recorded:
            return None
        if round is None:
            taken = round_taken(self)
            round = min(self.recorded, key=lambda r: (abs(r - taken), r))
        path = self.path / "collaboration" / f"round-{round:04d}.npy"
        if not path.exists():
            raise RunError(f"xi of round {round} was not recorded; recorded are {self.recorded}.")
        return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]

    @property
    def modelled(self) -> list[str]:
        """Clients whose model is on disk, newcomers too."""
        files = sorted((self.path / "models").glob("*.safetensors"))
        return [unquote(file.name.removesuffix(".safetensors")) for file in files]

    def model_file(self, client: str) -> Path:
        path = self.path / "models" / f"{file_name(client)}.safetensors"
        if not path.exists():
            names = self.summary.clients
            have = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            hint = did_you_mean(client, names, 0.6)
            raise RunError(f"There is no model of a client {client!r} in {self.path}. {hint}Clients are {have}.")
        return path

    def outputs(self, client: str | None = None) -> Outputs | None:
        """What the models answered on the test samples at the closing exchange, of all clients or of one; None where
        the run was made before this was kept."""
        found = self._outputs
        return found if found is None or client is None else found.of(client)

    @cached_property
    def _outputs(self) -> Outputs | None:
        path = self.path / "outputs.safetensors"
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {}).get("fedkin", "{}"))
                return Outputs.from_file({n: file.get_tensor(n) for n in file.keys()}, about)  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OSError) as error:
            raise RunError(f"{path} is damaged ({error}); remove it, and reports do without it.") from None

    def metrics(self) -> dict[str, dict[str, dict[str, Estimate]]]:
        """{client: {model: {metric: value with its 95 % interval}}}, on test samples at the closing exchange.

        Every metric that fits the task; the model that a client was handed is there as `chosen` too.
        """
        found = self.outputs()
        if found is None:
            raise RunError(f"The run in {self.path} kept no outputs to make metrics of; run it again.")
        return found.metrics()

    def scores(self, model: str | None = None, part: str = "test") -> NDArray[np.float64]:
        """(rounds, clients) scores of a model (the headline) on test or validation data, the closing line last."""
        name = model or self.summary.headline
        if name not in self.summary.models:
            raise RunError(f"The run has no model {name!r}; it has {', '.join(self.summary.models)}.")
        lines = [line.models[name] for line in self.rounds if not line.novel]
        held = [each if part == "test" else each.validation for each in lines]
        return np.array([each.clients if each else () for each in held], dtype=np.float64)
