"""One rank's part of a model: a spec and recipes of its own, made from those of the whole. Torch-free.

Neither the architecture nor the layers know of it: a shard is a model of fewer heads, columns, experts and layers, and its
recipes take fewer rows and columns of the same tensors.

    cut by rows      qkv, gate, sinks (by heads), gate_up, up (by width), embedding and output (by token), norms over all heads
    cut by columns   out, down: what they give is a part of a sum
    whole            norms, routers, learned positions, biases of what is cut by columns
"""

from dataclasses import dataclass, replace

from penstock.runtime.models.ranks import RankPlace, Ranks
from penstock.runtime.models.spec import GQA, MLP, GatedMLP, Layer, ModelSpec, MoE, only_gqa
from penstock.runtime.models.weights import Concat, HalvesPaired, Recipe, Recipes, Stack, Take


@dataclass(frozen=True, slots=True)
class ModelShard:
    """`spec` is what the rank builds and loads; `whole` is the model that all of them are together.

    A mixture's count of experts stays that of all: every rank routes every token.
    """

    place: RankPlace
    whole: ModelSpec
    spec: ModelSpec

    @property
    def vocabulary(self) -> range:
        return self.place.vocabulary(self.whole.vocab_size)

    @property
    def layers(self) -> range:
        return self.place.layers(self.whole.num_layers)

    @property
    def num_parameters(self) -> int:
        """Held by this rank: an embedding in the first stage, an output matrix in the last."""
        spec, place = self.spec, self.place
        count = spec.num_parameters
        if not place.is_first_stage:
            count -= spec.vocab_size * spec.hidden_size
        if not place.is_last_stage:
            count -= spec.hidden_size * (2 if spec.norm.kind == "layer" else 1)
        mixtures = [layer.mlp for layer in spec.layers if isinstance(layer.mlp, MoE)]
        for mlp in mixtures:
            count -= (mlp.num_experts - len(place.experts(mlp))) * mlp.expert.num_parameters(spec.hidden_size)
        return count


def shard_model(spec: ModelSpec, ranks: Ranks, rank: int) -> ModelShard:
    ranks.check(spec)
    place = ranks.place(rank)
    held = place.layers(spec.num_layers)
    is_first, is_last = place.is_first_stage, place.is_last_stage
    return ModelShard(
        place,
        spec,
        replace(
            spec,
            vocab_size=len(place.vocabulary(spec.vocab_size)),
            layers=tuple(_layer(spec.layers[index], place) for index in held),
            tied_embedding=(spec.tied_embedding and is_first) if is_last else True,
            learned_positions=spec.learned_positions if is_first else 0,
            token_types=spec.token_types if is_first else 0,
            embedding_norm=spec.embedding_norm and is_first,
        ),
    )


def _layer(layer: Layer, place: RankPlace) -> Layer:
    attention = only_gqa(layer.attention, "split over ranks")
    local = replace(attention, num_heads=len(place.heads(attention)), num_kv_heads=len(place.kv_heads(attention)))
    return replace(layer, attention=local, mlp=_mlp(layer.mlp, place))


def _mlp(mlp: MLP, place: RankPlace) -> MLP:
    if not isinstance(mlp, MoE):
        return replace(mlp, width=len(place.width(mlp.width)))
    return replace(mlp, expert=replace(mlp.expert, width=len(place.expert_width(mlp))))


def shard_recipes(recipes: Recipes, shard: ModelShard) -> Recipes:
    """Recipes of the rank's own parameters, by the names they have in its own model."""
    place, whole = shard.place, shard.whole
    held = shard.layers
    found: Recipes = {}
    for name, recipe in recipes.items():
        if not name.startswith("layers."):
            found |= _outside(name, recipe, shard)
            continue
        _, number, rest = name.split(".", 2)
        if int(number) in held:
            part = _inside(rest, recipe, whole.layers[int(number)], place)
            found[f"layers.{int(number) - held.start}.{rest}"] = part
    return found


def _outside(name: str, recipe: Recipe, shard: ModelShard) -> Recipes:
    """Embedding, output and what belongs to them. A tied matrix is the output matrix of a last stage that is not the first."""
    place, rows = shard.place, shard.vocabulary
    is_first, is_last = place.is_first_stage, place.is_last_stage
    match name:
        case "embedding.weight":
            found: Recipes = {name: _rows(recipe, rows)} if is_first else {}
            if shard.whole.tied_embedding and is_last and not is_first:
                found["output.weight"] = _rows(recipe, rows)
            return found
        case "output.weight":
            return {name: _rows(recipe, rows)} if is_last else {}
        case "norm.weight" | "norm.bias":
            return {name: recipe} if is_last else {}
        case _:
            return {name: recipe} if is_first else {}


def _inside(name: str, recipe: Recipe, layer: Layer, place: RankPlace) -> Recipe:
    part, _, kind = name.rpartition(".")
    attention, mlp = only_gqa(layer.attention, "split over ranks"), layer.mlp
    match part:
        case "attention.qkv":
            return _qkv(recipe, attention, place)
        case "attention" if kind == "sinks":
            return _rows(recipe, place.heads(attention))
        case "attention.q_norm" | "attention.k_norm" if attention.qk_norm == "full":
            heads = place.heads(attention) if part.endswith("q_norm") else place.kv_heads(attention)
            return _rows(recipe, _scaled(heads, attention.head_dim))
        case "attention.gate":
            return _rows(recipe, _scaled(place.heads(attention), attention.head_dim))
        case "attention.out" if kind == "weight":
            return _columns(recipe, _scaled(place.heads(attention), attention.head_dim))
        case _ if part.startswith("mlp.experts.") and isinstance(mlp, MoE):
            return _expert_part(part, kind, recipe, mlp, place)
        case "mlp.gate_up" if isinstance(mlp, GatedMLP):
            return _gate_up(recipe, mlp.width, place.width(mlp.width))
        case "mlp.up" if not isinstance(mlp, MoE):
            return _rows(recipe, place.width(mlp.width))
        case "mlp.down" if kind == "weight" and not isinstance(mlp, MoE):
            return _columns(recipe, place.width(mlp.width))
        case _:
            return recipe


def _qkv(recipe: Recipe, attention: GQA, place: RankPlace) -> Recipe:
    size = attention.head_dim
    kv = place.kv_heads(attention)
    wanted = [(place.heads(attention), attention.num_heads)] + [(kv, attention.num_kv_heads)] * 2
    if isinstance(recipe, Concat) and recipe.axis == 0 and len(recipe.parts) == 3:
        return Concat(tuple(_heads(part, held, size) for part, (held, _) in zip(recipe.parts, wanted)))
    parts, begin = [], 0
    for held, total in wanted:  # one tensor of all rows: q, then k, then v
        parts.append(_rows(recipe, range(begin + held.start * size, begin + held.stop * size)))
        begin += total * size
    return Concat(tuple(parts))


def _heads(recipe: Recipe, held: range, size: int) -> Recipe:
    """Rows of whole heads, taken before they are paired: what is not held is not read."""
    if isinstance(recipe, HalvesPaired):
        return HalvesPaired(_rows(recipe.part, _scaled(held, size)), len(held))
    return _rows(recipe, _scaled(held, size))


def _gate_up(recipe: Recipe, width: int, held: range, axis: int = 0) -> Recipe:
    """Rows gate, then rows up."""
    if isinstance(recipe, Concat) and recipe.axis == axis and len(recipe.parts) == 2:
        return Concat(tuple(_taken(part, held, axis) for part in recipe.parts), axis)
    ups = range(width + held.start, width + held.stop)
    return Concat((_taken(recipe, held, axis), _taken(recipe, ups, axis)), axis)


def _expert_part(part: str, kind: str, recipe: Recipe, mlp: MoE, place: RankPlace) -> Recipe:
    recipe = _of_experts(recipe, place.experts(mlp))
    width, held = mlp.expert.width, place.expert_width(mlp)
    if len(held) == width:
        return recipe
    if part.endswith("gate_up"):
        if isinstance(recipe, Stack):
            return Stack(tuple(_gate_up(each, width, held) for each in recipe.parts))
        return _gate_up(recipe, width, held, axis=1)
    if kind == "bias":
        return recipe
    if isinstance(recipe, Stack):
        return Stack(tuple(_columns(each, held) for each in recipe.parts))
    return _taken(recipe, held, 2)


def _of_experts(recipe: Recipe, held: range) -> Recipe:
    """Only the rank's own experts; others that are stored apart are not even opened."""
    match recipe:
        case Stack(parts):
            return Stack(parts[held.start : held.stop])
        case Concat(parts, axis) if axis > 0:
            return Concat(tuple(_of_experts(part, held) for part in parts), axis)
        case _:
            return _rows(recipe, held)


def _rows(recipe: Recipe, held: range) -> Recipe:
    return _taken(recipe, held, 0)


def _columns(recipe: Recipe, held: range) -> Recipe:
    return _taken(recipe, held, 1)


def _taken(recipe: Recipe, held: range, axis: int) -> Recipe:
    return Take(recipe, held.start, held.stop, axis=axis)


def _scaled(held: range, size: int) -> range:
    return range(held.start * size, held.stop * size)
