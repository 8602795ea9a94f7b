"""Every setting of a run, as frozen dataclasses: the one place where a field, its type and its default are written.

`configs/*.py` turn these into `ml_collections.ConfigDict`s for the command line; `rsipo_jax.validation.validated` turns a
ConfigDict back into a `Config` and refuses unknown keys, wrong types and impossible combinations in one sentence.
Code receives a `Config` (or one of its sections), never a ConfigDict. Formulas cited here are explained where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EnvConfig:
    """The environment that acts back."""

    engine: str = (
        "fast"  # "fast": our own exact engine, in process; "textworld": the real one, in worker processes
    )
    data: str = ""  # folder that holds json_2.1.1/, or a *.jsonl.xz; "" means $ALFWORLD_DATA, without it generated games
    official: bool = True  # `data` must hold all of ALFWorld's own games; False plays whatever games it holds
    version: str = (
        "as_is"  # wording: "as_is", what the files have; "2.1.1": put X in/on Y; "2.1.2": move X to Y, help
    )
    goals: str = (
        "templated"  # the task sentence: "templated", or "human", a person's description of the same task
    )
    max_turns: int = 50  # actions an episode may take
    workers: int = 2  # worker processes of the textworld engine
    name: str = "alfworld"  # "alfworld", whose fields those above are but for max_turns, or "search"


@dataclass(frozen=True)
class GamesConfig:
    """Generated ALFWorld games; used when no data folder is named."""

    train: int = 800  # number of games of each split
    valid_seen: int = 100
    valid_unseen: int = 210
    seed: int = 0
    max_per_kind: int = 0  # most receptacles of one kind in a room; 0 keeps ALFRED's own counts


@dataclass(frozen=True)
class SearchConfig:
    """Questions that are answered by searching passages (env.name="search")."""

    questions: str = (
        ""  # folder with files of questions; "": questions about the fictional encyclopaedia made from `seed`
    )
    corpus: str = (
        ""  # passages to search: a *.jsonl, plain or packed (.xz, .gz); the encyclopaedia brings its own
    )
    retriever: str = "bm25"  # how passages are found: bm25 | dense | http: by a server | none: never
    encoder: str = ""  # dense: Hugging Face folder of a BERT encoder
    query_prefix: str = ""  # dense: what the encoder wants before queries; E5: "query: "
    passage_prefix: str = ""  # dense: what the encoder wants before passages; E5: "passage: "
    url: str = ""  # http: where the server of Search-R1's protocol listens
    timeout_s: float = 60.0  # http: seconds that an answer may take
    retries: int = 3  # http: more attempts when none comes
    hits: int = 3  # passages that a search shows
    passage_chars: int = 800  # characters of a passage that are shown
    index: str = ""  # bm25, dense: folder of the index, built where it is missing; "": in the workdir
    train_sets: tuple[str, ...] = ("nq", "hotpotqa")  # data sets whose training questions are trained on
    people: int = 600  # in each world of the encyclopaedia, and a third as many of every other sort of things
    demonstrated: int = 2000  # questions about the world of the encyclopaedia in which experts play
    train: int = 2000  # questions about the worlds of its splits
    dev: int = 100
    test: int = 400
    seed: int = 0


@dataclass(frozen=True)
class ModelSection:
    """The policy network. Either a Hugging Face checkpoint, or the sizes of a fresh Llama-architecture network."""

    checkpoint: str = ""  # folder or hub id; "" builds a fresh network of the sizes below
    hidden_size: int = 0
    intermediate_size: int = 0
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    rope_theta: float = 10_000.0
    dtype: str = "float32"  # compute dtype of the forward pass: float32 or bfloat16; parameters stay float32
    scan_layers: bool = (
        True  # one compiled layer scanned over the stack; False unrolls (faster on CPU, slower to compile)
    )
    remat: str = "full"  # what a layer keeps for the backward pass: "none": all; "dots": its projections; "full": its input
    attention: str = "auto"  # "auto": "splash" on TPU, "cudnn" on GPU, "xla" elsewhere


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters, trained in place of the network's own parameters."""

    rank: int = 0  # 0: no adapters, everything is trained
    alpha: float = 16.0  # adapters add alpha / rank times their product
    targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")  # adapted projections


@dataclass(frozen=True)
class MeshConfig:
    """How the devices share the work; the product of the three sizes is their number."""

    data: int = 1  # copies of the parameters, each with its own rows
    fsdp: int = 0  # cuts rows and parameters; 0: the devices that `data` and `tensor` leave
    tensor: int = 1  # cuts heads, feed-forward channels and vocabulary
    sampling_tensor: int = 1  # the same for sampling, whose other devices hold slots of their own


@dataclass(frozen=True)
class TokenizerConfig:
    """Hugging Face checkpoints bring their tokenizer; a fresh network trains a sentencepiece model on environment text."""

    vocab_size: int = 0  # pieces of the trained sentencepiece model; 0 with a checkpoint


@dataclass(frozen=True)
class ContextConfig:
    """What the policy sees at each turn."""

    kind: str = "conversation"  # "conversation": one growing sequence; "window": a fresh prompt with the last `history` turns
    history: int = 2  # observation/action pairs in a window prompt
    # "paper": what a window prompt says, in the paper family's order, instructions last; "static_first": role, instructions
    # and task (then the skill) before all that changes, so that the turns of an episode and the members of a group share
    # a long prefix, which the sampler caches.
    order: str = "paper"
    show_admissible: bool = False  # list the admissible actions in every observation
    max_length: int = (
        1024  # tokens of prompt and response together, skill included; the sampler's cache holds this many
    )
    parser: str = "faithful"  # "faithful": the family's lenient rules; "strict": exactly one admissible action after the thought


@dataclass(frozen=True)
class RolloutConfig:
    tasks_per_step: int = 16  # B
    group_size: int = 8  # G
    temperature: float = 1.0
    top_k: int = 0  # draws from so many likeliest tokens; 0: from all
    top_p: float = 1.0  # draws from the likeliest tokens with so much probability together; 1: from all
    min_p: float = 0.0  # draws from tokens with this share of the likeliest one's probability; 0: from all
    max_new_tokens: int = 512  # tokens of one turn
    slots: int = 128  # episodes played, and sequences decoded, together
    reuse_prefixes: bool = True  # what the sampler holds of a prompt is not computed again
    watch_rows: int = 8  # training rows whose sampled tokens the learner scores too after every weight change
    max_drift: float = 0.2  # nats a token between the two, on average, that stop the run
    reuse_drift: float = 1e-3  # nats a token up to which the sampler's log-probabilities are the old policy's
    win_reward: float = 10.0
    invalid_penalty: float = 0.1  # subtracted once per turn whose action is malformed


@dataclass(frozen=True)
class SkillConfig:
    replays: int = 1  # K: replays of the task with each skill
    max_new_tokens: int = 1024  # tokens of the written analysis
    max_chars: int = 1200  # longer skills pay `long_penalty`
    long_penalty: float = 0.2
    eta: float = 0.1  # weight of the skill-writing loss
    observation_chars: int = 400  # an observation in an analysis prompt of numbered steps is cut here
    leak_guard: bool = (
        False  # a skill that holds an answer of its task, or the one its episode gave, is invalid
    )
    per_task: int = 0  # episodes of a task that are analysed, drawn anew in every step; 0: all
    adv_group: str = (
        "task"  # skills judged against each other: of a "task", of a "task_outcome", of the "batch"
    )
    valid_bonus: float = 0.0  # f_ok: added to the reward of a readable skill
    # Whose skills are replayed and teach: the episode's "own"; "shuffled", those of another task of the step (misleading);
    # "static", written by the SFT policy. Writing is trained with "own" only.
    source: str = "own"
    eta_schedule: str = "constant"  # of `eta` over the RL steps, to `eta_final`: constant | linear | cosine
    eta_final: float = 0.0


@dataclass(frozen=True)
class TrustConfig:
    """Empirical-Bayes trust in the skill-conditioned teacher."""

    function: str = "pos_mean"  # pos_mean | prob | prob_excess | reliability | raw | one | zero
    kappa: float = 1.0  # gain at which pos_mean trusts fully
    c0: float = 0.5  # Jeffreys pseudo-count
    decay: float = 0.9  # rho_e of the prior's sufficient statistics
    tau2_floor: float = 1e-4
    min_units: int = 16  # N_min: below it the starting prior is used
    tau2_start: float = 0.02
    unit: str = "task"  # whose gain is judged: a "task"'s, over all its skills; a "skill"'s; "hier": skills within tasks
    signed: bool = False  # w in [-1, 1]: a teacher that misleads repels
    # Units with a prior of their own: none | outcome (won or lost, of the skill's source) | split_success (none, some or all
    # won in one half of the plain episodes; the other half is compared with the replays).
    prior_class: str = "none"
    estimator: str = "moments"  # of the prior: moments | dersimonian_laird
    token_shrinkage: bool = (
        False  # the log-ratios of an episode count as far as they stand out among those of the step
    )


@dataclass(frozen=True)
class LossConfig:
    clip: float = 0.2
    dual_clip: float = 3.0
    kl: float = 0.01  # beta, against the SFT policy
    entropy: float = 0.0
    distill: float = 0.03  # lambda: weight of the trusted teacher-student log-ratio
    mean_norm: bool = False  # trajectory advantages without the division by the group's standard deviation
    distill_clip: float = 5.0  # delta_max
    clip_high: float = 0.0  # how far above 1 the ratio may go; 0: as far as `clip`
    kl_kind: str = "k3"  # estimate of the KL from one token: k1 | k2 | k3
    average: str = (
        "token"  # of the loss: over all tokens, or "sequence": over the means of rows (a turn or an episode)
    )
    importance_cap: float = (
        0.0  # most that a token counts for being likelier to the learner than to its sampler; 0: all count 1
    )
    advantage: str = "grpo"  # of the acting tokens: grpo | rloo | gigpo | none
    adv_stat: str = "episode"  # statistics of a group: over its episodes, or "rows": over their turns, so long ones weigh more
    gamma: float = 0.95  # gigpo: discount of the returns from a turn on
    omega: float = 1.0  # gigpo: weight of what a turn did better than others from the same observation
    similarity: float = 1.0  # gigpo: observations this much alike are the same; 1: the same text
    # The forms want strengths of their own: beside a `distill` of 0.03 here, the relatives have 0.001 (OPID, "advantage"),
    # 0.01 (SDAR, "gated_loss") and 0.5 (RLSD and GRSD, "modulate"; at 0.03 an advantage changes by 0.6% at most).
    hybrid: str = "advantage"  # what the teacher changes: "advantage", "gated_loss" (SDAR), "modulate" (RLSD)
    teacher: str = (
        "behaviour"  # weights of the teacher: those that acted, or "current": scored anew before every update
    )
    gate_slope: float = 5.0  # b of gated_loss
    distill_schedule: str = (
        "constant"  # of `distill` over the RL steps, to `distill_final`: constant | linear | cosine
    )
    distill_final: float = 0.0
    distill_low: float = 0.0  # distill_to_rl is held between the two: lambda is adapted from step to step;
    distill_high: float = 0.0  # 0: it is not


@dataclass(frozen=True)
class TrainConfig:
    steps: int = 150
    learning_rate: float = 1e-6
    warmup_ratio: float = 0.0
    weight_decay: float = 0.01
    grad_clip: float = 1.0
    minibatch_rows: int = 256  # rows of one optimizer update; 0 takes the whole step as one batch
    microbatch_tokens: int = 8192  # tokens of one gradient computation on one device, padding included
    momentum_dtype: str = (
        "float32"  # of the first moment; Adam's second is too slow for bfloat16's eight bits
    )
    checkpoint_every: int = 10


@dataclass(frozen=True)
class SFTConfig:
    """Cold start on demonstrations: acting, acting with a skill, writing a skill."""

    games: int = 0  # training games demonstrated; 0 skips the stage (the checkpoint is the SFT policy)
    reading_questions: int = (
        0  # questions about observations for each of those games; they teach a fresh network to read
    )
    epochs: int = 3
    optimizer: str = "adamw"  # "adamw" or "muon", which learned a fresh network faster
    learning_rate: float = 5e-6
    batch_tokens: int = 8192
    observation_weight: float = (
        0.0  # loss weight of environment text; > 0 teaches a fresh network the language
    )


@dataclass(frozen=True)
class EvalConfig:
    every: int = 5  # RL steps between evaluations on the `during` panel; 0 never
    during: int = 64  # games of that panel, spread evenly over the sorted valid_seen games
    panels: tuple[str, ...] = (
        "valid_seen",
        "valid_unseen",
    )  # measured before and after RL; also train_probe, literature
    temperature: float = 0.4
    top_k: int = 0  # as in the rollout section
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True)
class Config:
    seed: int = 0
    method: str = "rsipo"
    env: EnvConfig = field(default_factory=EnvConfig)
    games: GamesConfig = field(default_factory=GamesConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    model: ModelSection = field(default_factory=ModelSection)
    lora: LoraConfig = field(default_factory=LoraConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    skill: SkillConfig = field(default_factory=SkillConfig)
    trust: TrustConfig = field(default_factory=TrustConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
