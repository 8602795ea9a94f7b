"""What the generator knows about ALFRED's households: rooms, furniture, things and where they go.

Type names are ALFRED's. Counts are round figures of the kind found in its scenes: (fewest, most) for
furniture, the mean for things. Which thing goes where follows ALFRED's table of valid receptacles.
"""

from __future__ import annotations

from rsipo_jax.envs.alfworld.game import KINDS

# Scene numbers as in ALFRED. Layouts of the unseen split are never used in the other two.
SCENES = {
    "kitchen": range(1, 31),
    "livingroom": range(201, 231),
    "bedroom": range(301, 331),
    "bathroom": range(401, 431),
}
UNSEEN_SCENES = frozenset({10, 219, 308, 424})

# Share of each task type in the real games, and the rooms it is played in.
SHARES = dict(zip(KINDS, (0.22, 0.09, 0.19, 0.13, 0.15, 0.22), strict=True))
ROOMS_OF = {
    "pick_and_place_simple": ("kitchen", "livingroom", "bedroom", "bathroom"),
    "look_at_obj_in_light": ("livingroom", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "livingroom", "bedroom", "bathroom"),
}

FURNITURE = {
    "kitchen": {
        "Cabinet": (4, 20), "CoffeeMachine": (1, 1), "CounterTop": (1, 3), "DiningTable": (0, 2),
        "Drawer": (2, 10), "Fridge": (1, 1), "GarbageCan": (1, 1), "Microwave": (1, 1), "Shelf": (0, 3),
        "SideTable": (0, 1), "SinkBasin": (1, 1), "StoveBurner": (4, 4), "Toaster": (1, 1),
    },
    "livingroom": {
        "ArmChair": (0, 3), "Cabinet": (0, 4), "CoffeeTable": (1, 2), "DiningTable": (0, 1), "Drawer": (0, 8),
        "Dresser": (0, 1), "GarbageCan": (1, 1), "Ottoman": (0, 1), "Shelf": (0, 6), "SideTable": (1, 3),
        "Sofa": (1, 2), "TVStand": (0, 1),
    },
    "bedroom": {
        "ArmChair": (0, 1), "Bed": (1, 2), "Desk": (0, 2), "Drawer": (2, 10), "Dresser": (0, 1),
        "GarbageCan": (1, 1), "LaundryHamper": (0, 1), "Safe": (0, 1), "Shelf": (0, 6), "SideTable": (1, 2),
    },
    "bathroom": {
        "BathtubBasin": (0, 1), "Cabinet": (1, 4), "Cart": (0, 1), "CounterTop": (1, 1), "Drawer": (0, 5),
        "GarbageCan": (1, 1), "HandTowelHolder": (1, 2), "Shelf": (0, 2), "SinkBasin": (1, 2),
        "Toilet": (1, 1), "ToiletPaperHanger": (1, 1), "TowelHolder": (1, 2),
    },
}  # fmt: skip
# Chance that a piece has a door; kinds not named here never have one.
OPENABLE = {"Fridge": 1.0, "Microwave": 1.0, "Safe": 0.9, "Drawer": 0.85, "Cabinet": 0.85}
# Neighbours of these kinds may share a standpoint.
CLUSTERED = frozenset({"Cabinet", "Drawer", "Shelf", "StoveBurner"})

OBJECTS = {
    "kitchen": {
        "Apple": 2.0, "Book": 0.3, "Bowl": 2.0, "Bread": 1.5, "ButterKnife": 1.8, "CellPhone": 0.2,
        "CreditCard": 0.3, "Cup": 2.0, "DishSponge": 2.0, "Egg": 2.0, "Fork": 2.0, "Glassbottle": 0.6,
        "HousePlant": 0.5, "Kettle": 1.0, "Knife": 1.9, "Ladle": 0.7, "Lettuce": 1.8, "Mug": 2.0, "Pan": 1.4,
        "PaperTowelRoll": 0.4, "PepperShaker": 2.0, "Plate": 1.9, "Pot": 1.5, "Potato": 2.0,
        "SaltShaker": 2.0, "SoapBottle": 1.9, "Spatula": 1.9, "Spoon": 2.0, "Statue": 0.3, "Tomato": 2.0,
        "Vase": 0.4, "WineBottle": 0.8,
    },
    "livingroom": {
        "Book": 0.5, "Bowl": 0.2, "Box": 1.4, "Candle": 0.3, "CellPhone": 0.5, "CreditCard": 2.0,
        "HousePlant": 1.0, "KeyChain": 2.0, "Laptop": 1.4, "Newspaper": 1.2, "Pen": 0.4, "Pencil": 0.4,
        "Pillow": 1.1, "Plate": 0.6, "RemoteControl": 2.0, "Statue": 2.0, "Television": 0.9, "TissueBox": 0.8,
        "Vase": 1.6, "Watch": 1.0, "WateringCan": 0.6,
    },
    "bedroom": {
        "AlarmClock": 1.8, "BaseballBat": 0.4, "BasketBall": 0.4, "Book": 1.9, "Bowl": 0.7, "Box": 0.5,
        "CD": 2.0, "CellPhone": 2.0, "Cloth": 0.4, "CreditCard": 2.0, "HousePlant": 0.3, "KeyChain": 2.0,
        "Laptop": 1.6, "Mug": 1.0, "Pen": 2.0, "Pencil": 2.0, "Pillow": 1.7, "RemoteControl": 0.3,
        "Statue": 0.3, "TeddyBear": 0.4, "TennisRacket": 0.4, "TissueBox": 0.3, "Vase": 0.2, "Watch": 0.2,
    },
    "bathroom": {
        "Candle": 2.0, "Cloth": 2.0, "DishSponge": 0.6, "HandTowel": 1.2, "Plunger": 1.0, "ScrubBrush": 1.0,
        "SoapBar": 2.0, "SoapBottle": 2.0, "SprayBottle": 2.0, "TissueBox": 0.5, "ToiletPaper": 2.2,
        "Towel": 1.1,
    },
}  # fmt: skip
LAMPS = ("DeskLamp", "FloorLamp")
LAMP_PLACES = ("SideTable", "Desk", "Dresser", "Shelf", "CoffeeTable", "DiningTable", "TVStand")
SPECIAL_PLACES = {  # things that CAN_CONTAIN does not mention, and where they stand
    "HousePlant": ("CounterTop", "SideTable", "DiningTable", "CoffeeTable", "Desk", "Dresser"),
    "Television": ("Dresser", "TVStand", "CoffeeTable", "SideTable"),
    "DeskLamp": LAMP_PLACES,
    "FloorLamp": LAMP_PLACES,
    "TeddyBear": ("Bed",),
    "ScrubBrush": ("Toilet",),
}
UNPICKABLE = frozenset({"HousePlant", "Television", *LAMPS})

SLICEABLE = frozenset({"Apple", "Bread", "Egg", "Lettuce", "Potato", "Tomato"})
HEATABLE = frozenset({"Apple", "Bread", "Cup", "Egg", "Mug", "Plate", "Potato", "Tomato"})
COOLABLE = HEATABLE | {"Bowl", "Lettuce", "Pan", "Pot", "WineBottle"}
CLEANABLE = frozenset({
    "Apple", "Bowl", "ButterKnife", "Cloth", "Cup", "DishSponge", "Egg", "Fork", "Kettle", "Knife", "Ladle",
    "Lettuce", "Mug", "Pan", "Plate", "Pot", "Potato", "SoapBar", "Spatula", "Spoon", "Tomato",
})  # fmt: skip
HOLDS_THINGS = frozenset({"Bowl", "Box", "Cup", "Mug", "Pan", "Plate", "Pot"})

_CUTLERY = {"ButterKnife", "Fork", "Knife", "Ladle", "Spatula", "Spoon"}
_DISHES = {"Bowl", "Cup", "Mug", "Plate"}
_COOKWARE = {"Kettle", "Pan", "Pot"}
_BOTTLES = {"Glassbottle", "WineBottle"}
_SHAKERS = {"PepperShaker", "SaltShaker"}
_WASHING = {"Cloth", "DishSponge", "HandTowel", "SoapBar", "SoapBottle", "SprayBottle"}
_PAPER = {"Newspaper", "TissueBox", "ToiletPaper"}
_SMALL = {"CD", "CellPhone", "CreditCard", "KeyChain", "Pen", "Pencil", "RemoteControl", "Watch"}
_VALUABLES = {"CellPhone", "CreditCard", "KeyChain"}
_LEISURE = _VALUABLES | {"Book", "Box", "Laptop", "Newspaper", "Pillow", "RemoteControl"}
_SPORTS = {"BasketBall", "TennisRacket"}
_DECORATION = {"Statue", "Vase", "WateringCan"}
_TABLE = {
    *_SMALL, *_CUTLERY, *_DISHES, *_COOKWARE, *_SHAKERS, *_SPORTS, *_DECORATION, *SLICEABLE, "AlarmClock",
    "BaseballBat", "Book", "Box", "Candle", "Laptop", "Newspaper", "SoapBottle", "SprayBottle", "TissueBox",
    "WineBottle",
}  # fmt: skip

CAN_CONTAIN: dict[str, set[str]] = {
    "ArmChair": {*_LEISURE, "Cloth"},
    "BathtubBasin": {"Cloth", "DishSponge", "HandTowel", "SoapBar"},
    "Bed": {*_SPORTS, "BaseballBat", "Book", "CellPhone", "Laptop", "Pillow"},
    "Cabinet": {
        *_DISHES, *_COOKWARE, *_BOTTLES, *_SHAKERS, *_WASHING, *_PAPER, "Book", "Box", "CD", "Candle",
        "Ladle", "Plunger", "Vase", "WateringCan",
    },
    "Cart": {*_WASHING, "Candle", "Plunger", "TissueBox", "ToiletPaper"},
    "CoffeeMachine": {"Mug"},
    "CoffeeTable": {
        *_VALUABLES, *_DECORATION, "Book", "Bowl", "Box", "Candle", "Laptop", "Newspaper", "Pen", "Pencil",
        "Plate", "RemoteControl", "TissueBox", "Watch",
    },
    "CounterTop": {
        *_VALUABLES, *_CUTLERY, *_DISHES, *_COOKWARE, *_BOTTLES, *_SHAKERS, *_WASHING, *SLICEABLE,
        "AlarmClock", "Book", "CD", "Candle", "Laptop", "PaperTowelRoll", "Pen", "Pencil", "RemoteControl",
        "Statue", "TissueBox", "ToiletPaper", "Vase",
    },
    "Desk": {
        *_SMALL, *_SPORTS, *_DECORATION, "AlarmClock", "Book", "Bowl", "Box", "Cloth", "Laptop", "Mug",
        "TissueBox",
    },
    "DiningTable": {*_TABLE, "Glassbottle"},
    "Drawer": {*_SMALL, *_CUTLERY, *_SHAKERS, *_WASHING, *_PAPER, "Book", "Candle", "WateringCan"},
    "Dresser": {
        *_SMALL, *_SPORTS, *_DECORATION, *_PAPER, "AlarmClock", "Book", "Bowl", "Box", "Candle", "Cloth",
        "Laptop", "Mug", "Plate", "SprayBottle",
    },
    "Fridge": {*_DISHES, *_BOTTLES, *SLICEABLE, "Pan", "Pot"},
    "GarbageCan": {*_WASHING, *_PAPER, *SLICEABLE, "CD", "PaperTowelRoll", "Pen", "Pencil", "WineBottle"},
    "HandTowelHolder": {"HandTowel"},
    "LaundryHamper": {"Cloth"},
    "Microwave": {*HEATABLE, "Bowl", "Glassbottle"},
    "Ottoman": _LEISURE,
    "Safe": {*_VALUABLES, "CD", "Statue", "Vase"},
    "Shelf": {
        *_SMALL, *_DISHES, *_BOTTLES, *_SHAKERS, *_WASHING, *_PAPER, *_DECORATION, "AlarmClock", "Book",
        "Box", "Candle", "Kettle", "PaperTowelRoll", "Pot",
    },
    "SideTable": {*_TABLE, *_WASHING, "PaperTowelRoll", "ToiletPaper"},
    "SinkBasin": {
        *_CUTLERY, *_DISHES, *_COOKWARE, *(SLICEABLE - {"Bread"}), "Cloth", "DishSponge", "Glassbottle",
        "HandTowel", "SoapBar",
    },
    "Sofa": _LEISURE,
    "StoveBurner": _COOKWARE,
    "TVStand": {*_VALUABLES, *_DECORATION, "Book", "Newspaper", "RemoteControl", "TissueBox", "Watch"},
    "Toaster": set(),
    "Toilet": {*_WASHING, "Candle", "TissueBox", "ToiletPaper"},
    "ToiletPaperHanger": {"ToiletPaper"},
    "TowelHolder": {"Towel"},
}  # fmt: skip

# Goals in PDDL and ALFWorld's two sentences for each, to be filled with thing, receptacle and lamp.
_PLACED = "(objectType ?o {obj}Type) (receptacleType ?r {recep}Type) (inReceptacle ?o ?r)"
_SECOND = (
    "(exists (?p - object) (and (not (= ?o ?p)) "
    "(objectType ?p {obj}Type) (receptacleType ?r {recep}Type) (inReceptacle ?p ?r)))"
)
_LIT = (
    "(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot {lamp}Type) "
    "(toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))"
)
_HELD = "(exists (?o - object ?a - agent) (and (objectType ?o {obj}Type) (holds ?a ?o)))"


def _some(conditions: str) -> str:
    return f"(exists (?r - receptacle) (exists (?o - object) (and {conditions})))"


GOALS = {
    "pick_and_place_simple": _some(_PLACED),
    "look_at_obj_in_light": f"{_LIT} {_HELD}",
    "pick_clean_then_place_in_recep": _some(f"(cleanable ?o) (isClean ?o) {_PLACED}"),
    "pick_heat_then_place_in_recep": _some(f"(heatable ?o) (isHot ?o) {_PLACED}"),
    "pick_cool_then_place_in_recep": _some(f"(coolable ?o) (isCool ?o) {_PLACED}"),
    "pick_two_obj_and_place": _some(f"{_PLACED} {_SECOND}"),
}
SENTENCES = {
    "pick_and_place_simple": ("put a {obj} in {recep}", "put some {obj} on {recep}"),
    "look_at_obj_in_light": ("look at {obj} under the {lamp}", "examine the {obj} with the {lamp}"),
    "pick_clean_then_place_in_recep": (
        "put a clean {obj} in {recep}",
        "clean some {obj} and put it in {recep}",
    ),
    "pick_heat_then_place_in_recep": ("put a hot {obj} in {recep}", "heat some {obj} and put it in {recep}"),
    "pick_cool_then_place_in_recep": ("put a cool {obj} in {recep}", "cool some {obj} and put it in {recep}"),
    "pick_two_obj_and_place": ("put two {obj} in {recep}", "find two {obj} and put them in {recep}"),
}
