"""Plays games on the fast engine and on the original and compares everything after every step.

    python -m tests.envs.alfworld.differential --data=FOLDER --log=FILE [--games=N] [--workers=2] [--untouched]

Compared are the text, the admissible commands in their order, whether the game is won, the score, what is carried and
the facts behind it. A game is played four times: the planner's way to the goal and on for a while after it; a walk of
admissible commands, most of them local, of the planner's and of odd ones (impossible, mangled, of the other version of
the game files, nonsense); and two short ones to where the engine is odd itself. Commands are a function of the seed
and the task id.

The log has one JSON line a game, under a key made of the engines' source files and the settings. A run that was killed
goes on where it ended; a changed engine starts afresh.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.resources
import json
import multiprocessing
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from rsipo_jax.envs.alfworld import data
from rsipo_jax.envs.alfworld.engine import NOTHING, FastEpisode, intro
from rsipo_jax.envs.alfworld.experts import Planner
from rsipo_jax.envs.alfworld.game import VERSION_2_1_1, VERSION_2_1_2, Game, parse_game
from rsipo_jax.envs.alfworld.textworld import TextWorldGame
from rsipo_jax.envs.protocol import Observation, Task
from rsipo_jax.evaluation.panels import make_panel
from rsipo_jax.reports.console import make_console, progress

Content = Mapping[str, Any]  # of a game file

PLAN = 50  # steps of the planner's way at most; the longest plan of a real game has 10
AFTER_THE_GOAL = 8  # steps after the planner's way to the goal
WANDERING = 24  # steps of the second walk
LONG = 5_000  # repetitions in a very long command


# Players: an engine with everything about it that can be compared.


@dataclass(frozen=True)
class View:
    """All that is compared after a start or a step."""

    text: str
    admissible: tuple[str, ...]
    won: bool
    score: int
    inventory: tuple[str, ...]  # PDDL ids
    facts: frozenset[tuple[str, ...]]  # what can change in a game, (predicate, *arguments)


class Player(Protocol):
    def start(self, content: Content) -> View: ...

    def step(self, command: str) -> View: ...


class FastPlayer:
    def start(self, content: Content) -> View:
        self._episode = FastEpisode(parse_game(content["pddl_problem"], content["grammar"], "the game"))
        return self._view(intro(self._episode.game))

    def step(self, command: str) -> View:
        return self._view(self._episode.step(command))

    def _view(self, text: str) -> View:
        e = self._episode
        held = (e.held.id,) if e.held else ()
        facts = {("atlocation", e.place), *(("opened", r.id) for r in e.opened)}
        facts |= {("inreceptacle", t.id, r.id) for r, inside in e.contents.items() for t in inside}
        facts |= {("not_inreceptacle", t.id, r.id) for t, r in e.taken_out}
        facts |= {("objectatlocation", t.id, place) for t, places in e.spots.items() for place in places}
        states = {
            "ishot": e.hot,
            "iscool": e.cool,
            "isclean": e.clean,
            "istoggled": e.toggled,
            "issliced": e.sliced,
        }
        facts |= {(name, thing.id) for name, things in states.items() for thing in things}
        return View(text, e.admissible, e.won, int(e.won), held, frozenset(facts))


class OriginalPlayer:
    def __init__(self, untouched: bool = False) -> None:
        self._game = TextWorldGame(Path(), untouched)
        self._loaded: Content | None = None

    def start(self, content: Content) -> View:
        if self._loaded is not content:  # further walks of a game start it anew, without loading
            self._game.load(content)
            self._loaded = content
        return self._view(self._game.start())

    def step(self, command: str) -> View:
        return self._view(self._game.step(command))

    def _view(self, observation: Observation) -> View:
        env = self._game._env.unwrapped
        rows = [
            (fact.name, *(argument.name for argument in fact.arguments)) for fact in env._pddl_state.facts
        ]
        placed = {row[1] for row in rows if row[0] == "receptacleatlocation"}
        facts = {
            row for row in rows
            if row[0] in ("objectatlocation", "ishot", "iscool", "isclean", "istoggled", "issliced")
            # one without a standpoint can never be reached, and the fast engine leaves it out
            or (row[0] in ("opened", "inreceptacle", "not_inreceptacle") and row[-1] in placed)
        }  # fmt: skip
        facts |= {("atlocation", row[2]) for row in rows if row[0] == "atlocation"}
        held = tuple(sorted(row[2] for row in rows if row[0] == "holds"))
        score = env.state.get("score", int(observation.won))  # there is none after a reset
        return View(observation.text, observation.admissible, observation.won, score, held, frozenset(facts))


# Walks: the commands of one episode. The first two play along on a fast episode of their own to know what could be
# done; the others try what the game's start suggests, possible or not.


def walk_to_the_goal(game: Game, rng: random.Random) -> Iterator[str]:
    """The planner's way, then mostly local commands in the won game."""
    episode = FastEpisode(game)
    for _ in range(PLAN):
        if episode.won:
            break
        command = planned(episode)
        episode.step(command)
        yield command
    for _ in range(AFTER_THE_GOAL):
        command = local_command(episode, rng) if rng.random() < 0.8 else rng.choice(episode.admissible)
        episode.step(command)
        yield command


def wander(game: Game, rng: random.Random) -> Iterator[str]:
    """Local, planned, odd and any admissible commands."""
    episode = FastEpisode(game)
    for _ in range(WANDERING):
        draw = rng.random()
        if draw < 0.3:
            command = odd_command(episode, rng)
        elif draw < 0.55 and not episode.won:
            command = planned(episode)
        else:
            command = local_command(episode, rng) if draw < 0.85 else rng.choice(episode.admissible)
        episode.step(command)
        yield command


def treat(game: Game, rng: random.Random) -> Iterator[str]:
    """One thing sliced if it can be, then cleaned, heated and cooled in any order, and looked at after each."""
    lying = [(thing, r) for r, inside in game.contents.items() for thing in inside if thing.pickupable]
    if not lying:
        return
    rng.shuffle(lying)
    thing, where = max(lying, key=lambda pair: (pair[0].sliceable, pair[0].coolable, pair[0].cleanable))
    take = [f"go to {where.name}", f"open {where.name}", f"take {thing.name} from {where.name}"]
    blade, block = next((pair for pair in lying if pair[0].is_blade), (None, where))
    if thing.sliceable and blade is not None:
        move = game.wording.move.format(o=blade.name, r=block.name)
        yield from (f"go to {block.name}", f"open {block.name}", f"take {blade.name} from {block.name}")
        yield from (take[0], f"slice {thing.name} with {blade.name}", f"go to {block.name}", move)
    yield from (*take, f"examine {thing.name}")
    appliances = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
    for verb in rng.choices(list(appliances), k=4):
        for appliance in [r for r in game.receptacles if r.kind == appliances[verb]][:1]:
            yield from (f"go to {appliance.name}", f"{verb} {thing.name} with {appliance.name}")
            yield f"examine {thing.name}"
    yield from (take[0], game.wording.move.format(o=thing.name, r=where.name), "look")


def carry_across(game: Game, rng: random.Random) -> Iterator[str]:
    """Things from one receptacle into another that shares its standpoint, where "look" then shows them."""
    shared = [here for here in game.at_place.values() if len(here) > 1]
    if not shared:
        return
    one, other = rng.sample(rng.choice(shared), 2)
    yield from (f"go to {one.name}", f"open {one.name}", f"open {other.name}")
    for source, target in ((one, other), (other, one)):
        for thing in game.contents[source][:3]:
            yield f"take {thing.name} from {source.name}"
            yield game.wording.move.format(o=thing.name, r=target.name)
        yield "look"


WALKS = (walk_to_the_goal, wander, treat, carry_across)


def planned(episode: FastEpisode) -> str:
    """The planner's next command."""
    return Planner(episode.game).act(episode).action


def local_command(episode: FastEpisode, rng: random.Random) -> str:
    """An admissible command that goes nowhere: a verb first, as most commands are to examine or to take something."""
    by_verb: dict[str, list[str]] = {}
    for command in episode.admissible:
        verb = command.split()[0]
        by_verb.setdefault("look" if verb in ("inventory", "help") else verb, []).append(command)
    return rng.choice(by_verb[rng.choice(sorted(by_verb.keys() - {"go"}))])


NONSENSE = (
    "", " ", "\n", "xyzzy", "help", "Help", "HELP", "help me", "look around", "l", "inventory look", "look\nlook",
    "go to", "go to ", "go to loc 1", "take", "take all", "take from", "open", "examine", "use", "put", "move",
    "look " * LONG, "x" * LONG, "你好", "loök", "ｌｏｏｋ", "look\u200b", "\u00a0look", "look\u2028", "\x00", "\ud800", "🙂",
    "{r.name}", "{o}", "#intro#", "[{r.name | receptacleatlocation(r:receptacle, l:location)}]", "look; inventory",
    "take teddybear 9 from bed 9", "go to sofa 12", "move mug 7 to fridge 3", "use desklamp 8", "examine agent1",
)  # fmt: skip


def odd_command(episode: FastEpisode, rng: random.Random) -> str:
    """A command that is impossible here, mangled or nonsense; a few of them happen to be possible after all."""
    game = episode.game
    thing, other = rng.choice(game.things).name, rng.choice(game.things).name
    receptacle = rng.choice(game.receptacles).name
    held = episode.held.name if episode.held and rng.random() < 0.7 else thing
    out_of_place = [
        f"take {thing} from {receptacle}",
        *(wording.move.format(o=held, r=receptacle) for wording in (VERSION_2_1_1, VERSION_2_1_2)),
        *(f"{verb} {held} with {receptacle}" for verb in ("heat", "cool", "clean")),
        *(f"{verb} {receptacle}" for verb in ("go to", "open", "close", "examine", "use", "take")),
        *(f"{verb} {thing}" for verb in ("go to", "open", "examine", "use", "take", "inventory")),
        f"slice {thing} with {other}",
        f"put {thing} into {other}",
        f"go to {game.place_names[rng.choice(list(game.place_names))]}",
    ]
    possible = local_command(episode, rng) if rng.random() < 0.7 else rng.choice(episode.admissible)
    mangled = [
        f" {possible}\n", f"\t{possible} ", f"{possible}.", f"{possible} {possible}", possible.replace(" ", "  "),
        possible.replace(" ", "\u00a0"), possible.upper(), possible.title(), possible[:-1], possible[1:],
        f"the {possible}", f"{possible}\n{possible}", possible.replace("e", "é"), f"{possible} now",
    ]  # fmt: skip
    return rng.choice(rng.choice((out_of_place, out_of_place, mangled, NONSENSE)))


# Comparing.


@dataclass(frozen=True)
class Result:
    """How a game went, a line of the log."""

    id: str
    version: str
    steps: int
    verbs: dict[str, int]  # first words of the commands that did something; "odd" ones that did nothing
    differences: list[dict[str, Any]]
    seconds: float


def compare(
    reference: Player, others: Sequence[Player], content: Content, seed: int, task: str, version: str
) -> Result:
    """Play a game's walks on all engines. A walk ends with its first difference."""
    begin = time.perf_counter()
    game = parse_game(content["pddl_problem"], content["grammar"], task)
    verbs: Counter[str] = Counter()
    differences: list[dict[str, Any]] = []
    for walk in WALKS:
        commands = walk(game, random.Random(f"{seed}/{task}/{walk.__name__}"))
        expected, played = reference.start(content), list[str]()
        seen = [other.start(content) for other in others]
        while not (found := [difference for view in seen for difference in unequal(expected, view)]):
            command = next(commands, None)
            if command is None:
                break
            played.append(command)
            expected = reference.step(command)
            seen = [other.step(command) for other in others]
            verbs["odd" if expected.text == NOTHING else command.split()[0]] += 1
        differences += [{"walk": walk.__name__, "commands": played, **difference} for difference in found]
    seconds = round(time.perf_counter() - begin, 3)
    return Result(task, version, verbs.total(), dict(sorted(verbs.items())), differences, seconds)


def unequal(expected: View, found: View) -> Iterator[dict[str, Any]]:
    """What differs between two views; of sets only the elements that one of them lacks."""
    for name in (field.name for field in fields(View)):
        ours, theirs = getattr(found, name), getattr(expected, name)
        if name == "facts":
            ours, theirs = sorted(ours - theirs), sorted(theirs - ours)
        if ours != theirs:
            yield {"field": name, "expected": theirs, "found": ours}


# The two versions of the game files, which differ in wording and in the action `help`.

_REWORDED = (  # 2.1.1, 2.1.2
    ("You arrive at {lend.name}.", "You arrive at {r.name}."),
    ("put {o} in/on {r}", "move {o} to {r}"),
    ("You put the {o.name} in/on the {r.name}.", "You move the {o.name} to the {r.name}."),
)


def version_for(task: str) -> str:
    """The version a game is compared in: one half of all games each."""
    return ("2.1.1", "2.1.2")[hashlib.sha256(task.encode()).digest()[0] % 2]


def in_version(content: Content, version: str) -> dict[str, Any]:
    """A game file's content in the other version's words, or as it is."""
    domain, grammar = content["pddl_domain"], content["grammar"]
    if (VERSION_2_1_2.move in grammar) == (version == "2.1.2"):
        return dict(content)
    domain_help, grammar_help = _help()
    if version == "2.1.1":
        domain = f"{domain[: domain.index('(:action help')]})"
        grammar = grammar[: grammar.index("action help {")]
    else:
        domain = f"{domain.rpartition(')')[0]}{domain_help}"
        grammar = f"{grammar}\n{grammar_help}"
    for old, new in _REWORDED:
        grammar = grammar.replace(new, old) if version == "2.1.1" else grammar.replace(old, new)
    return {**content, "pddl_domain": domain, "grammar": grammar}


def _help() -> tuple[str, str]:
    """The ends of version 2.1.2's domain and grammar, which 2.1.1 lacks."""
    logic = importlib.resources.files("rsipo_jax.envs.alfworld") / "logic"
    domain, grammar = ((logic / name).read_text(encoding="utf-8") for name in ("alfred.pddl", "alfred.twl2"))
    return domain[domain.index("(:action help") :], grammar[grammar.index("action help {") :]


# Many games, in worker processes, with a log that can be resumed.


def run(
    root: Path, log: Path, games: int, workers: int, seed: int, untouched: bool, console: Console
) -> list[dict[str, Any]]:
    """Compare `games` games (0: all) spread evenly over the data folder; the log's records of them all."""
    found = [
        task for split in data.SPLITS if data.has_split(root, split) for task in data.find_tasks(root, split)
    ]
    tasks = make_panel("games", found, games).tasks
    key = settings_key(seed, untouched)
    done = {record["id"]: record for record in resume(log, key)}
    missing = [task for task in tasks if task.id not in done]
    console.print(f"{len(tasks)} games, {len(tasks) - len(missing)} of them in {log}")
    spawn = multiprocessing.get_context("spawn")
    with (
        log.open("a", encoding="utf-8") as file,
        ProcessPoolExecutor(workers, spawn) as executor,
        progress(console, "games", len(missing)) as advance,
    ):
        try:
            for future in as_completed([executor.submit(_play, root, t, seed, untouched) for t in missing]):
                record = {"key": key, **asdict(future.result())}
                file.write(json.dumps(record) + "\n")
                file.flush()
                done[record["id"]] = record
                if record["differences"]:
                    console.print(f"{record['id']} differs: {record['differences'][0]}", markup=False)
                advance(1)
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise
    return [done[task.id] for task in tasks]


def settings_key(seed: int, untouched: bool) -> str:
    """The sha256 of everything that a comparison depends on but the games."""
    package = Path(data.__file__).parent
    names = ("engine", "game", "goals", "pddl", "textworld", "original_speedups")
    digest = hashlib.sha256(f"{seed} {untouched}".encode())
    for path in (*(package / f"{name}.py" for name in names), Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def resume(log: Path, key: str) -> list[dict[str, Any]]:
    """The log's records under this key. Lines under another key, and one that was cut off, are removed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
    whole = [line for line in lines if line.endswith("\n") and json.loads(line)["key"] == key]
    partial = log.with_name(f"{log.name}.partial")
    partial.write_text("".join(whole), encoding="utf-8")
    partial.replace(log)
    return [json.loads(line) for line in whole]


_original = functools.cache(OriginalPlayer)  # one a process: a second would only take memory


def _play(root: Path, task: Task, seed: int, untouched: bool) -> Result:
    """Compare one game in a worker. Whatever goes wrong is a difference, and the other games go on."""
    version = version_for(task.id)
    try:
        content = in_version(data.read_game(root, task), version)
        return compare(_original(untouched), [FastPlayer()], content, seed, task.id, version)
    except Exception:
        return Result(task.id, version, 0, {}, [{"field": "error", "found": traceback.format_exc()}], 0.0)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="differential", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds json_2.1.1")
    parser.add_argument(
        "--log", type=Path, required=True, help="JSON lines, one a game; resumed if it exists"
    )
    parser.add_argument("--games", type=int, default=0, help="how many, spread evenly; 0: all")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--untouched", action="store_true", help="against the original as installed: 20 times slower"
    )
    args = parser.parse_args(arguments)
    console = make_console()
    records = run(args.data, args.log, args.games, args.workers, args.seed, args.untouched, console)
    verbs = sum((Counter(record["verbs"]) for record in records), Counter[str]())
    versions = Counter(record["version"] for record in records)
    differing = [record["id"] for record in records if record["differences"]]
    console.print(
        f"{len(records)} games ({', '.join(f'{n} of {v}' for v, n in sorted(versions.items()))}), "
        f"{sum(record['steps'] for record in records)} steps, "
        f"{sum(record['seconds'] for record in records):.0f} s of workers"
    )
    console.print(", ".join(f"{verb} {count}" for verb, count in verbs.most_common()))
    console.print(f"{len(differing)} games differ" + "".join(f"\n  {task}" for task in differing))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
