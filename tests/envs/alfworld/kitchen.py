"""A kitchen small enough to check by hand.

Standpoints: loc 1 the start, loc 2 the fridge and the cabinet beside it, loc 3 the sinkbasin, loc 4 the table.
"""

from __future__ import annotations

from rsipo_jax.envs.alfworld.game import VERSION_2_1_2, Game, Wording, build_game

FACTS = """
    (atLocation agent1 loc_bar_4)
    (receptacleType Fridge_bar_1 FridgeType) (receptacleAtLocation Fridge_bar_1 loc_bar_3) (openable Fridge_bar_1)
    (receptacleType Cabinet_bar_1 CabinetType) (receptacleAtLocation Cabinet_bar_1 loc_bar_3) (openable Cabinet_bar_1)
    (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType) (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_2)
    (receptacleType Table_bar_1 DiningTableType) (receptacleAtLocation Table_bar_1 loc_bar_1)
    (canContain FridgeType AppleType) (canContain FridgeType MugType) (canContain CabinetType MugType)
    (canContain SinkBasinType AppleType) (canContain SinkBasinType MugType) (canContain SinkBasinType KnifeType)
    (canContain DiningTableType AppleType) (canContain DiningTableType MugType) (canContain DiningTableType KnifeType)
    (objectType Apple_bar_1 AppleType) (pickupable Apple_bar_1) (cleanable Apple_bar_1) (coolable Apple_bar_1)
    (sliceable Apple_bar_1) (inReceptacle Apple_bar_1 Table_bar_1) (objectAtLocation Apple_bar_1 loc_bar_1)
    (objectType Apple_bar_2 AppleType) (pickupable Apple_bar_2) (cleanable Apple_bar_2) (coolable Apple_bar_2)
    (sliceable Apple_bar_2) (inReceptacle Apple_bar_2 Fridge_bar_1) (objectAtLocation Apple_bar_2 loc_bar_3)
    (objectType Mug_bar_1 MugType) (pickupable Mug_bar_1) (cleanable Mug_bar_1) (isReceptacleObject Mug_bar_1)
    (inReceptacle Mug_bar_1 Cabinet_bar_1) (objectAtLocation Mug_bar_1 loc_bar_3)
    (objectType Knife_bar_1 KnifeType) (pickupable Knife_bar_1) (cleanable Knife_bar_1)
    (inReceptacle Knife_bar_1 Table_bar_1) (objectAtLocation Knife_bar_1 loc_bar_1)
    (objectType Lamp_bar_1 DeskLampType) (toggleable Lamp_bar_1)
    (inReceptacle Lamp_bar_1 Table_bar_1) (objectAtLocation Lamp_bar_1 loc_bar_1)
"""
CLEAN_APPLE = """(and (exists (?r - receptacle) (exists (?o - object) (and (cleanable ?o) (isClean ?o)
    (objectType ?o AppleType) (receptacleType ?r FridgeType) (inReceptacle ?o ?r)))))"""


def kitchen(goal: str = CLEAN_APPLE, wording: Wording = VERSION_2_1_2, more: str = "") -> Game:
    problem = f"(define (problem kitchen) (:init {FACTS} {more}) (:goal {goal}))"
    return build_game(problem, "put a clean apple in fridge", wording, "kitchen")
