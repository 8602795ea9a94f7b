"""How many tokens one RL step of a config runs through the network, phase by phase.

Lengths are those of ALFWorld with the paper family's prompts (about 500 tokens with the admissible actions, answered in
about 100, over nearly every allowed turn), as measured by the relatives of the paper; a config that allows less gets
less. They are estimates: a plan compares machines and meshes, a run measures itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from rsipo_jax.config import Config
from rsipo_jax.methods import METHODS
from rsipo_jax.sampling.programs import STEPS

PROMPT = 500  # tokens of a window prompt with two exchanges and the admissible actions
RESPONSE = 100  # tokens of a thought and an action
OBSERVATION = 60  # tokens that a turn adds to a conversation besides the response
SKILL = 250  # tokens of a skill: 1,200 characters at most
ANALYSIS = 1500  # tokens of the prompt that asks for a skill, most of it the episode
WRITTEN = 400  # tokens of the analysis with the skill in it
LONGEST = 2.5  # the longest of the responses that are sampled together, over their mean
STATIC = (
    60  # tokens that a window prompt with its static part first begins with at every turn, without the skill
)
# Nats a token between what the sampler and the learner compute: of float32 and of bfloat16, about.
DRIFT = {"float32": 1e-6, "bfloat16": 1e-2}
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
    longest_tokens: int  # of the longest of the sequences that decode together
    decode_tokens: float  # sampled
    decode_steps: float  # of the decoding loop

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
    replays = episodes * config.skill.replays if METHODS[config.method].replays else 0
    room, slots, keeps = longest - response - skill, config.rollout.slots, config.rollout.reuse_prefixes
    if config.context.kind == "window":
        prompt = min(PROMPT, room)
        acting_rows, acting_row = episodes * turns, prompt + response
        # The prompt of a turn shares next to nothing with the last one, unless what is static comes first.
        static_first = config.context.order == "static_first" and keeps
        fresh = prompt - (min(STATIC, prompt // 2) if static_first else 0)
        read_skill = skill * (1 if static_first else turns)
        opening = prompt
        analysis = min(ANALYSIS, longest - written)
        skill_rows, skill_row = (episodes, analysis + written) if writes else (0, 0)
        read_to_write: float = episodes * analysis
        longest_prompt = prompt + skill
    else:  # one growing row, in which the skill is written as well
        added = min(OBSERVATION, max(1, room // turns - response))
        acting_rows, acting_row = episodes, min(turns * (added + response) + written, longest)
        skill_rows = skill_row = 0
        prompt, opening, read_skill = acting_row // 2, added, skill * (1 if keeps else turns)
        fresh = added if keeps else prompt
        # The episodes that ended last are still held when the skills are written.
        held = min(slots, episodes) if keeps else 0
        read_to_write = held * added + (episodes - held) * acting_row
        longest_prompt = acting_row - response + skill
    # A group reads its opening once: one member computes it, the others copy it. A skill parts those of replays.
    openings = config.rollout.tasks_per_step if keeps else episodes
    read = openings * opening + episodes * (turns - 1) * fresh
    read += replays * (opening + (turns - 1) * fresh + read_skill)
    rows = acting_rows + skill_rows
    sampled = episodes * (turns * response + written)
    trained = acting_rows * acting_row + skill_rows * skill_row
    # Where the sampler is as exact as that, its own log-probabilities are the behaviour policy's.
    unfiltered = (config.rollout.top_k, config.rollout.top_p, config.rollout.min_p) == (0, 1.0, 0.0)
    again = not unfiltered or DRIFT[config.model.dtype] > config.rollout.reuse_drift
    scored = (1 + again) * trained + config.rollout.watch_rows * acting_row
    scored += (trained + acting_rows * skill) if writes else 0  # the teacher's rows hold the skill
    # Slots go on by themselves: a response waits for the next look at the sampler, not for the longest one.
    played = (max(1.0, n / slots) for n in (episodes, replays) if n)
    return Workload(
        rows=rows,
        row_tokens=trained / rows,
        sampled=sampled / trained,
        scored_tokens=scored,
        prefill_tokens=read + bool(writes) * read_to_write,
        prompt_tokens=prompt,
        new_tokens=fresh,
        longest_tokens=min(
            longest_prompt + round(min(LONGEST * response, config.rollout.max_new_tokens)), longest
        ),
        decode_tokens=(episodes + replays) * turns * response + episodes * written,
        decode_steps=sum(played) * turns * (response + STEPS / 2)
        + bool(writes) * -(-episodes // slots) * min(LONGEST * written, config.skill.max_new_tokens),
    )
