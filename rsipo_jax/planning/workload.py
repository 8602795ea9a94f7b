"""How many tokens one RL step of a config runs through the network, phase by phase.

Lengths are those of ALFWorld with the paper family's prompts (about 500 tokens with the admissible actions, answered in
about 100, over nearly every allowed turn), as measured by the relatives of the paper; a config that allows less gets
less. They are estimates: a plan compares machines and meshes, a run measures itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from rsipo_jax.config import Config
from rsipo_jax.methods import METHODS

PROMPT = 500  # tokens of a window prompt with two exchanges and the admissible actions
RESPONSE = 100  # tokens of a thought and an action
OBSERVATION = 60  # tokens that a turn adds to a conversation besides the response
SKILL = 250  # tokens of a skill: 1,200 characters at most
ANALYSIS = 1500  # tokens of the prompt that asks for a skill, most of it the episode
WRITTEN = 400  # tokens of the analysis with the skill in it
LONGEST = 2.5  # the longest of the responses that are sampled together, over their mean
TURNS = 0.95  # of the allowed turns; most early episodes use all


@dataclass(frozen=True)
class Workload:
    """Means over a step. A row is what is trained as one sequence; tokens are real ones, without padding."""

    rows: int  # trained: acting and skill-writing
    row_tokens: float  # of a trained row
    sampled: float  # share of the tokens of trained rows that were sampled: the others were read
    scored_tokens: float  # over all scoring passes: behaviour and reference policy, and the teacher
    prefill_tokens: float  # prompt tokens that no slot holds yet
    prompt_tokens: int  # of a prompt, held or not
    new_tokens: int  # of a prompt, not held
    decode_tokens: float  # sampled
    decode_steps: float  # of the decoding loop: a turn takes as many as its longest response
    sequences: int  # that decode at once

    @property
    def trained_tokens(self) -> float:
        return self.rows * self.row_tokens


def step_workload(config: Config) -> Workload:
    """The tokens of one RL step of `config`."""
    episodes = config.rollout.tasks_per_step * config.rollout.group_size
    turns = max(1, round(TURNS * config.env.max_turns))
    longest = config.context.max_length
    response = min(RESPONSE, config.rollout.max_new_tokens)
    writes = METHODS[config.method].writes_skills
    skill = min(SKILL, config.skill.max_new_tokens) if writes else 0
    written = min(WRITTEN, config.skill.max_new_tokens) if writes else 0
    room = longest - response - (skill if writes else 0)
    if config.context.kind == "window":
        prompt = min(PROMPT, room)
        acting_rows, acting_row = episodes * turns, prompt + response
        fresh = prompt  # the prompt of a turn shares next to nothing with the last one
        analysis = min(ANALYSIS, longest - written)
        skill_rows, skill_row = (episodes, analysis + written) if writes else (0, 0)
        read_to_write = analysis
    else:  # one growing row, in which the skill is written as well
        fresh = min(OBSERVATION, max(1, room // turns - response))
        acting_rows, acting_row = episodes, min(turns * (fresh + response) + written, longest)
        skill_rows = skill_row = 0
        read_to_write = fresh
    replays = episodes * config.skill.replays if writes else 0
    rows = acting_rows + skill_rows
    sampled = episodes * (turns * response + written)
    trained = acting_rows * acting_row + skill_rows * skill_row
    # In float32 the sampler's own log-probabilities are the behaviour policy's.
    scored = (2 if config.model.dtype != "float32" else 1) * trained
    scored += (trained + acting_rows * skill) if writes else 0  # the teacher's rows hold the skill
    # A skill stands in every prompt of a window, and once in a conversation.
    read_skill = replays * skill * (turns if config.context.kind == "window" else 1)
    slots = config.rollout.slots
    waves = -(-episodes // slots) + -(-replays // slots)
    return Workload(
        rows=rows,
        row_tokens=trained / rows,
        sampled=sampled / trained,
        scored_tokens=scored,
        prefill_tokens=(episodes + replays) * turns * fresh
        + read_skill
        + episodes * bool(writes) * read_to_write,
        prompt_tokens=fresh if config.context.kind == "window" else acting_row // 2,
        new_tokens=fresh,
        decode_tokens=(episodes + replays) * turns * response + episodes * written,
        decode_steps=waves * turns * min(LONGEST * response, config.rollout.max_new_tokens)
        + bool(writes) * -(-episodes // slots) * min(LONGEST * written, config.skill.max_new_tokens),
        sequences=min(slots, episodes),
    )
