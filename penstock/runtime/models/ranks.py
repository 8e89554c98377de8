"""How a model is dealt out to ranks: which heads, rows, columns, experts and layers are whose. Plain numbers only.

    tensor    every matrix of a layer is cut over this many ranks
    pipeline  layers are cut into this many stages
    expert    experts are dealt out to this many ranks of a stage

A stage has max(tensor, expert) ranks, and one count divides the other. With more tensor than expert ranks each expert is cut
into slices; with more expert than tensor ranks attention is computed by several copies of the tensor group, alike.

    tensor 4, expert 2        column   0        1        2        3
                              experts  0 first  0 second 1 first  1 second     (halves of each expert's width)
    tensor 1, expert 2        column   0        1
                              experts  0        1                              (attention twice)
"""

from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.runtime.models.spec import GQA, Layer, ModelSpec, MoE

GROUP = 32
"""Matrices are cut between groups of so many columns, as packed numbers are grouped, wherever there are enough of them."""
MAX_RANKS = 1024


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many ways a model is cut."""

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1

    def __post_init__(self) -> None:
        if self.expert > 1 and self.expert % self.tensor and self.tensor % self.expert:
            raise ConfigError(
                f"--expert {self.expert} beside --tensor {self.tensor}: one must divide the other; make them equal, or "
                "choose a multiple"
            )
        if self.num_ranks > MAX_RANKS:
            raise ConfigError(f"{self.num_ranks:,} ranks are more than {MAX_RANKS:,}; choose fewer")

    @property
    def per_stage(self) -> int:
        return max(self.tensor, self.expert)

    @property
    def num_ranks(self) -> int:
        return self.per_stage * self.pipeline

    @property
    def num_slices(self) -> int:
        """Ranks that share one expert, each a slice of its width."""
        return self.per_stage // self.expert

    def place(self, rank: int) -> "RankPlace":
        return RankPlace(self, rank // self.per_stage, rank % self.per_stage)

    def check(self, spec: ModelSpec) -> None:
        """Raise ConfigError, before anything is loaded, if the model cannot be cut so."""
        if self.num_ranks == 1:
            return
        if not spec.generates:
            raise ConfigError("--tensor, --pipeline and --expert are for models that generate; leave them at 1")
        if self.pipeline > spec.num_layers:
            raise ConfigError(f"--pipeline {self.pipeline} for {spec.num_layers} layers; choose at most that")
        if self.expert > 1 and not any(isinstance(layer.mlp, MoE) for layer in spec.layers):
            raise ConfigError(f"--expert {self.expert}, but the model has no experts; leave it at 1")
        for layer in spec.layers:
            if not isinstance(layer.attention, GQA):
                kind = type(layer.attention).__name__
                raise ConfigError(
                    f"--tensor, --pipeline and --expert split layers of grouped-query attention, and this model has {kind}; "
                    "leave them at 1 (--replicas runs whole copies)"
                )
            self._check_attention(layer.attention)
            self._check_mlp(layer)
        if spec.vocab_size < self.tensor:
            raise ConfigError(f"--tensor {self.tensor} for a vocabulary of {spec.vocab_size}; choose at most that")

    def _check_attention(self, attention: GQA) -> None:
        heads, kv_heads, count = attention.num_heads, attention.num_kv_heads, self.tensor
        if count > kv_heads and (count % kv_heads or heads % count):
            fitting = [n for n in range(1, heads + 1) if n <= kv_heads or not (n % kv_heads or heads % n)]
            near = [max(n for n in fitting if n < count), *[n for n in fitting if n > count][:1]]
            raise ConfigError(
                f"--tensor {count} cannot share {heads} attention heads of {kv_heads} key-value heads; "
                f"choose {' or '.join(map(str, near))}"
            )

    def _check_mlp(self, layer: Layer) -> None:
        mlp = layer.mlp
        if not isinstance(mlp, MoE):
            if mlp.width < self.tensor:
                raise ConfigError(f"--tensor {self.tensor} for an MLP of width {mlp.width}; choose at most that")
            return
        if mlp.num_experts < self.expert:
            raise ConfigError(f"--expert {self.expert} for {mlp.num_experts} experts; choose at most that")
        if mlp.expert.width < self.num_slices:
            raise ConfigError(f"{self.num_slices} ranks share an expert of width {mlp.expert.width}; choose fewer")

    def __str__(self) -> str:
        parts = {"TP": self.tensor, "PP": self.pipeline, "EP": self.expert}
        return " x ".join(f"{name}{count}" for name, count in parts.items() if count > 1) or "one rank"


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one rank stands among all."""

    ranks: Ranks
    stage: int
    column: int

    @property
    def rank(self) -> int:
        return self.stage * self.ranks.per_stage + self.column

    @property
    def tensor_index(self) -> int:
        return self.column % self.ranks.tensor

    @property
    def expert_index(self) -> int:
        return self.column // self.ranks.num_slices

    @property
    def slice_index(self) -> int:
        return self.column % self.ranks.num_slices

    @property
    def is_first_stage(self) -> bool:
        return self.stage == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage == self.ranks.pipeline - 1

    def layers(self, num_layers: int) -> range:
        return share(num_layers, self.ranks.pipeline, self.stage)

    def vocabulary(self, vocab_size: int) -> range:
        return share(vocab_size, self.ranks.tensor, self.tensor_index, GROUP)

    def width(self, width: int) -> range:
        """Columns of a dense MLP."""
        return share(width, self.ranks.tensor, self.tensor_index, GROUP)

    def experts(self, mlp: MoE) -> range:
        return share(mlp.num_experts, self.ranks.expert, self.expert_index)

    def expert_width(self, mlp: MoE) -> range:
        return share(mlp.expert.width, self.ranks.num_slices, self.slice_index, GROUP)

    def kv_heads(self, attention: GQA) -> range:
        """Whole key-value heads; where there are fewer than ranks, one that others hold too."""
        count, kv_heads = self.ranks.tensor, attention.num_kv_heads
        if count <= kv_heads:
            return share(kv_heads, count, self.tensor_index)
        head = self.tensor_index // (count // kv_heads)
        return range(head, head + 1)

    def heads(self, attention: GQA) -> range:
        """Query heads: those of the rank's key-value heads, or its part of those."""
        count, kv_heads = self.ranks.tensor, attention.num_kv_heads
        if count > kv_heads:
            return share(attention.num_heads, count, self.tensor_index)
        held, each = self.kv_heads(attention), attention.num_heads // kv_heads
        return range(held.start * each, held.stop * each)


def share(total: int, count: int, index: int, unit: int = 1) -> range:
    """One of `count` runs that make up `total`, as equal as whole units allow: the first ones are longer by a unit.

    What does not make whole units, or not enough of them, is shared one by one.
    """
    if total % unit or total // unit < count:
        unit = 1
    each, more = divmod(total // unit, count)
    start = index * each + min(index, more)
    return range(start * unit, (start + each + (index < more)) * unit)
