"""A fictional encyclopaedia with questions about it: what a search agent learns on where no corpus is at hand.

Nothing in it can be known beforehand, and the people, works and places of the splits are different ones, so answers must
be found, not remembered. All worlds lie in one corpus: a search has to tell them apart. Everything is a function of the
seed. Passages are short, one an entity; every fact stands in the passage of the entity it is about, and names are two
parts of which each recurs everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rsipo_jax.envs.search.passages import Passage
from rsipo_jax.envs.search.questions import SPLITS, Question

SOURCE = "encyclopedia"
DEMONSTRATED = "demonstrated"  # the world in which experts play
WORLDS = (*SPLITS, DEMONSTRATED)
KINDS = ("single", "bridge", "compositional", "comparison")

_SYLLABLES = ("ba", "do", "fe", "gi", "ka", "lo", "mi", "nu", "pe", "ra", "so", "ti", "ve", "wa", "zu")
_ENDS = {
    "person": ("n", "s", "l", "r"),
    "city": ("burg", "port", "ford"),
    "country": ("land", "stan", "ria"),
    "work": ("",),
}
_JOBS = ("painter", "doctor", "singer", "lawyer", "pilot", "chemist")
_THINGS = (
    "River",
    "Garden",
    "Mirror",
    "Winter",
    "Lantern",
    "Island",
    "Letter",
    "Shadow",
    "Harbor",
    "Crown",
    "Bridge",
    "Storm",
)
_QUALITIES = (
    "Silent",
    "Golden",
    "Broken",
    "Distant",
    "Hidden",
    "Burning",
    "Frozen",
    "Last",
    "Crimson",
    "Empty",
    "Gentle",
    "Wild",
)


@dataclass(frozen=True)
class Hop:
    """One search that is needed: what to look for, the passage that tells, and what it tells."""

    query: str
    passage: str  # its id
    answer: str
    relation: str  # of what is looked for to the answer: "director", "birthplace"


@dataclass(frozen=True)
class Example:
    """A question with the way to its answer."""

    question: Question
    hops: tuple[Hop, ...]


@dataclass(frozen=True)
class Encyclopedia:
    passages: tuple[Passage, ...]
    examples: Mapping[str, tuple[Example, ...]]  # by split


@dataclass(frozen=True)
class _Entity:
    id: str
    name: str
    sort: str  # person, city, country, film, book, company
    facts: Mapping[str, str]  # relation -> name of what it leads to, or a year


@dataclass(frozen=True)
class _World:
    entities: Mapping[str, _Entity]  # by name

    def of(self, sort: str) -> list[_Entity]:
        return [entity for entity in self.entities.values() if entity.sort == sort]


@dataclass(frozen=True)
class _Relation:
    sort: str  # of what has it
    sentence: str  # of its passage
    question: str  # about a thing that is named
    noun: str  # "the director of the film {}", for what is not named


_RELATIONS: Mapping[str, _Relation] = {
    "birthplace": _Relation("person", "{} was born in {}.", "In which city was {} born?", "the city where {} was born"),
    "birth year": _Relation("person", "The birth year of {} is {}.", "In which year was {} born?", ""),
    "job": _Relation("person", "{} works as a {}.", "What is the job of {}?", ""),
    "spouse": _Relation("person", "{} is married to {}.", "Who is married to {}?", "the spouse of {}"),
    "country": _Relation("city", "{} is a city in {}.", "In which country is {}?", "the country of {}"),
    "mayor": _Relation("city", "The mayor of {} is {}.", "Who is the mayor of {}?", "the mayor of {}"),
    "capital": _Relation("country", "The capital of {} is {}.", "What is the capital of {}?", "the capital of {}"),
    "director": _Relation("film", "{} is a film directed by {}.", "Who directed the film {}?", "the director of the film {}"),
    "film year": _Relation("film", "The film {} came out in {}.", "In which year did the film {} come out?", ""),
    "author": _Relation("book", "{} is a book written by {}.", "Who wrote the book {}?", "the author of the book {}"),
    "founder": _Relation("company", "{} is a company founded by {}.", "Who founded {}?", "the founder of {}"),
    "seat": _Relation("company", "The seat of {} is in {}.", "In which city is the seat of {}?", "the city of the seat of {}"),
}  # fmt: skip
# Chains of relations whose middles are not named in the question.
_CHAINS = {
    "bridge": (
        ("director", "birthplace"), ("author", "birthplace"), ("founder", "spouse"), ("director", "job"),
        ("author", "birth year"), ("seat", "country"), ("birthplace", "country"), ("capital", "mayor"),
        ("spouse", "job"), ("founder", "birthplace"),
    ),
    "compositional": (
        ("director", "birthplace", "country"), ("author", "spouse", "job"), ("founder", "birthplace", "mayor"),
        ("seat", "country", "capital"), ("director", "spouse", "birthplace"),
    ),
}  # fmt: skip
_COMPARED = (
    ("person", "birth year", "Who was born first, {} or {}?"),
    ("film", "film year", "Which film came out first, {} or {}?"),
)


def make_encyclopedia(seed: int, people: int, questions: Mapping[str, int]) -> Encyclopedia:
    """Worlds of `people` persons each (and a third as many of every other sort), with so many questions a split.

    Question kinds take turns. Raises ValueError when `people` are too few for different questions.
    """
    rng = random.Random(f"encyclopedia/{seed}")
    names = _names(rng)
    worlds = {split: _world(rng, names, people, split) for split in WORLDS if split in questions}
    passages = [_passage(entity) for world in worlds.values() for entity in world.entities.values()]
    rng.shuffle(passages)
    examples = {
        split: tuple(_examples(rng, world, split, questions[split])) for split, world in worlds.items()
    }
    return Encyclopedia(tuple(passages), examples)


def make_leaflet(seed: str, people: int) -> list[tuple[Passage, tuple[Hop, ...]]]:
    """The passages of a world of its own, each with all that it tells: something to practise reading on.

    Raises ValueError as `make_encyclopedia` does.
    """
    rng = random.Random(f"leaflet/{seed}")
    world = _world(rng, _names(rng), people, "leaflet")
    return [
        (
            _passage(entity),
            tuple(Hop(entity.name, entity.id, value, relation) for relation, value in entity.facts.items()),
        )
        for entity in world.entities.values()
    ]


def _names(rng: random.Random) -> dict[str, Iterator[str]]:
    """Names of each sort that never repeat: all pairs of their parts in a shuffled order."""
    stems = [a + b for a in _SYLLABLES for b in _SYLLABLES]

    def shuffled(pairs: list[str]) -> Iterator[str]:
        rng.shuffle(pairs)
        return iter(pairs)

    firsts = [(stem + end).capitalize() for stem, end in zip(stems[:60], _ENDS["person"] * 15, strict=True)]
    lasts = [(stem + end).capitalize() for stem, end in zip(stems[60:140], _ENDS["person"] * 20, strict=True)]
    places = stems[140:]
    works = [f"{quality} {thing}" for quality in _QUALITIES for thing in _THINGS]
    numbered = [f"The {work}" for work in works] + [f"{work} of {name}" for work in works for name in firsts]
    half = len(numbered) // 2
    rng.shuffle(numbered)
    return {
        "person": shuffled([f"{first} {last}" for first in firsts for last in lasts]),
        "city": shuffled(
            [(a + b + end).capitalize() for a in places for b in _SYLLABLES for end in _ENDS["city"]]
        ),
        "country": shuffled(
            [(a + b + end).capitalize() for a in places for b in _SYLLABLES for end in _ENDS["country"]]
        ),
        "film": shuffled(numbered[:half]),
        "book": shuffled(numbered[half:]),
        "company": shuffled([f"{last} {thing} Company" for last in lasts for thing in _THINGS]),
    }


def _world(rng: random.Random, names: Mapping[str, Iterator[str]], people: int, split: str) -> _World:
    if people < 12:
        raise ValueError(f"a world of {people} people is too small: give at least 12")
    few = max(people // 3, 4)
    counts = {
        "person": people,
        "city": few,
        "country": max(few // 4, 3),
        "film": few,
        "book": few,
        "company": few,
    }
    try:
        own = {sort: [next(names[sort]) for _ in range(count)] for sort, count in counts.items()}
    except StopIteration:
        raise ValueError(f"there are not enough names for worlds of {people} people: ask for fewer") from None
    sort_of = {"birthplace": "city", "spouse": "person", "country": "country", "mayor": "person", "capital": "city",
               "director": "person", "author": "person", "founder": "person", "seat": "city"}  # fmt: skip
    entities: dict[str, _Entity] = {}
    for sort, members in own.items():
        for number, name in enumerate(members):
            facts = {}
            for relation, described in _RELATIONS.items():
                if described.sort != sort:
                    continue
                if relation == "job":
                    facts[relation] = rng.choice(_JOBS)
                elif relation.endswith("year"):
                    facts[relation] = str(rng.randint(1900, 1999))
                else:
                    facts[relation] = rng.choice([n for n in own[sort_of[relation]] if n != name])
            entities[name] = _Entity(f"{split}-{sort}-{number}", name, sort, facts)
    return _World(entities)


def _passage(entity: _Entity) -> Passage:
    sentences = [
        _RELATIONS[relation].sentence.format(entity.name, value) for relation, value in entity.facts.items()
    ]
    return Passage(entity.id, entity.name, " ".join(sentences))


def _examples(rng: random.Random, world: _World, split: str, count: int) -> Iterator[Example]:
    """Kinds in turn; no question twice."""
    makers: Mapping[str, Callable[[], tuple[str, Sequence[Hop], str]]] = {
        "single": lambda: _chain(rng, world, (rng.choice(list(_RELATIONS)),)),
        "bridge": lambda: _chain(rng, world, rng.choice(_CHAINS["bridge"])),
        "compositional": lambda: _chain(rng, world, rng.choice(_CHAINS["compositional"])),
        "comparison": lambda: _comparison(rng, world),
    }
    asked: set[str] = set()
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        for _ in range(1000):
            text, hops, answer = makers[kind]()
            if text not in asked:
                break
        else:
            raise ValueError(
                f"{count} different questions cannot be asked about this world: give it more people"
            )
        asked.add(text)
        question = Question(
            f"{split}/{kind}/{number:05}",
            SOURCE,
            text,
            (answer,),
            kind,
            split,
            tuple(hop.passage for hop in hops),
        )
        yield Example(question, tuple(hops))


def _chain(rng: random.Random, world: _World, relations: Sequence[str]) -> tuple[str, list[Hop], str]:
    """A question that follows relations from a named entity, the hops on the way, and where it ends."""
    entity = rng.choice(world.of(_RELATIONS[relations[0]].sort))
    described = named = entity.name
    hops = []
    for relation in relations:
        holder = world.entities[named]
        value = holder.facts[relation]
        hops.append(Hop(named, holder.id, value, relation))
        described, last = _RELATIONS[relation].noun.format(described), described
        named = value
    return _RELATIONS[relations[-1]].question.format(last), hops, named


def _comparison(rng: random.Random, world: _World) -> tuple[str, list[Hop], str]:
    sort, relation, question = rng.choice(_COMPARED)
    while True:
        two = rng.sample(world.of(sort), 2)
        years = [int(entity.facts[relation]) for entity in two]
        if years[0] != years[1]:
            break
    first = two[years.index(min(years))]
    return (
        question.format(*(entity.name for entity in two)),
        [Hop(entity.name, entity.id, entity.facts[relation], relation) for entity in two],
        first.name,
    )
