"""How fast: a decode step and a prompt, the two roofs of a device, traffic of attention, rounds of speculation."""

from dataclasses import dataclass

from penstock.errors import ConfigError
from penstock.fields import setting
from penstock.tools.calculate.sheet import Sheet, positive
from penstock.tools.calculate.subject import DeviceInputs, DeviceNumbers, ModelInputs, ModelNumbers
from penstock.tools.cost.hardware import find
from penstock.tools.cost.hierarchy import levels_of
from penstock.tools.planner import figures

TOKENS_PER_WORD = 1.3


@dataclass(frozen=True)
class ThroughputInputs(ModelInputs, DeviceInputs):
    """How long a decode step takes and how many tokens a second come of it."""

    batch: int = 1
    """Sequences that decode at once"""
    context: int = 0
    """Tokens that each of them holds in the cache"""
    prompt: int = 0
    """Tokens of a prompt to read"""


def throughput(inputs: ThroughputInputs, sheet: Sheet) -> None:
    model, device = ModelNumbers(inputs, sheet), DeviceNumbers(inputs, sheet, inputs.weights)
    batch = int(positive("batch", inputs.batch))
    read = figures.weight_bytes(model.met_parameters(batch), model.bits)
    kv = batch * inputs.context * model.kv_bytes_per_token if inputs.context else 0.0
    step_s = figures.decode_floor_s(read, device.ceilings, kv)
    sheet.put("weight_bytes", read, "bytes", "weights read a step", "parameters x bits / 8")
    sheet.put("kv_bytes", kv, "bytes", "KV read a step", "batch x context x kv_bytes_per_token")
    sheet.put("step_bytes", read + kv, "bytes", "bytes read a step", "weight_bytes + kv_bytes")
    fits = _room(inputs, model, device, sheet)
    if device.knows("flops"):
        compute_s = figures.forward_flops(model.active_parameters, batch) / device.flops
        sheet.put("compute_s", compute_s, "s", "compute of a step", "2 x active parameters x batch / flops")
        bound = "compute" if compute_s > step_s else "memory"
        step_s = max(step_s, compute_s)
        sheet.put("bound", bound, "", "bound by", "the longer of step_bytes / bandwidth and compute_s")
    sheet.put("step_s", step_s, "s", "a decode step (TPOT)", "the longer of step_bytes / bandwidth and compute_s")
    in_all = batch / step_s if fits else None
    sheet.put("tokens_per_s", in_all, "tokens/s", "tokens a second in all", "batch / step_s; none if it does not fit")
    sheet.put("tokens_per_s_each", 1.0 / step_s, "tokens/s", "tokens a second each", "1 / step_s")
    words = 1.0 / step_s / TOKENS_PER_WORD
    sheet.put("words_per_s_each", words, "words/s", "words a second each", "tokens_per_s_each / 1.3")
    if device.knows("flops"):
        mfu = figures.forward_flops(model.active_parameters, batch) / (step_s * device.peak_flops)
        sheet.put("mfu", mfu, "share", "MFU of a step", "2 x P x batch / (step_s x peak flops)")
        mbu = (read + kv) / (step_s * device.peak_bandwidth)
        sheet.put("mbu", mbu, "share", "MBU of a step", "step_bytes / (step_s x peak)")
    if inputs.prompt:
        prefill_s = figures.forward_flops(model.active_parameters, inputs.prompt) / device.flops
        sheet.put("prefill_s", prefill_s, "s", "reading the prompt", "2 x active parameters x prompt / flops")


def _room(inputs: ThroughputInputs, model: ModelNumbers, device: DeviceNumbers, sheet: Sheet) -> bool:
    """Whether weights and KV of the batch fit the device, as far as its memory is known; the largest batch that does."""
    if not device.knows("memory"):
        return True
    free, fits = device.memory_bytes - model.weight_bytes, True
    if inputs.context:
        largest = figures.sequences_that_fit(free, model.kv_bytes_per_token, inputs.context)
        fits = inputs.batch <= largest
        formula = "(memory - weights) / (context x kv_bytes_per_token)"
        sheet.put("largest_batch", largest, "", "largest batch that fits", formula)
    if free <= 0.0:
        fits = False
        sheet.notes.append(
            f"weights alone take {-free / 1e9:,.1f} GB more than the device has: calc memory tells how many do"
        )
    elif not fits:
        needed = inputs.batch * inputs.context * model.kv_bytes_per_token
        sheet.notes.append(
            f"batch {inputs.batch:,} cannot exist: its KV takes {needed / 1e9:,.1f} GB and weights leave {free / 1e9:,.1f}; "
            f"the largest that fits is {largest:,}"
        )
    sheet.put("fits", fits, "", "weights and KV fit", "weights + KV <= memory")
    return fits


@dataclass(frozen=True)
class RooflineInputs(DeviceInputs):
    """Which of the two roofs holds a piece of work back: memory or compute."""

    rows: int = setting(0)
    """Rows of a matrix"""
    columns: int = setting(0)
    """Columns of it"""
    batch: int = 1
    """Vectors it is multiplied with"""
    bits: float = setting(16.0)
    """Bits a number of it"""
    work: float | None = setting(None)
    """Operations, instead of a matrix"""
    moved: float | None = setting(None)
    """Bytes moved, instead of a matrix"""
    seconds: float | None = None
    """Time it took, to tell what share of the peaks was reached"""


def roofline(inputs: RooflineInputs, sheet: Sheet) -> None:
    device = DeviceNumbers(inputs, sheet)
    sheet.put("ridge", device.ridge, "flop/byte", "ridge", "flops / bandwidth")
    work, moved = inputs.work, inputs.moved
    if inputs.rows and inputs.columns:
        work = figures.forward_flops(inputs.rows * inputs.columns, inputs.batch)
        moved = figures.weight_bytes(inputs.rows * inputs.columns, inputs.bits)
    if work is None or moved is None:
        sheet.notes.append("give rows and columns of a matrix, or work and moved, to place work under the roof")
        return
    read_s, compute_s = moved / device.ceilings.bandwidth_bytes_per_s, work / device.flops
    sheet.put("work", work, "flop", "operations", "2 x rows x columns x batch")
    sheet.put("moved", moved, "bytes", "bytes moved", "rows x columns x bits / 8")
    sheet.put("intensity", work / moved, "flop/byte", "intensity", "work / moved")
    sheet.put("read_s", read_s, "s", "reading", "moved / bandwidth")
    sheet.put("compute_s", compute_s, "s", "computing", "work / flops")
    sheet.put("read_over_compute", read_s / compute_s, "", "reading / computing", "read_s / compute_s")
    taken_s = figures.roof_s(work, moved, device.ceilings, device.flops)
    sheet.put("time_s", taken_s, "s", "the least it takes", "the longer of read_s and compute_s")
    sheet.put("bound", "compute" if compute_s > read_s else "memory", "", "bound by", "which of the two is longer")
    taken_s = inputs.seconds or taken_s
    sheet.put("mfu", work / (taken_s * device.peak_flops), "share", "MFU", "work / (time x peak flops)")
    sheet.put("mbu", moved / (taken_s * device.peak_bandwidth), "share", "MBU", "moved / (time x peak bandwidth)")


@dataclass(frozen=True)
class AttentionInputs:
    """What tiling saves of the traffic of exact attention, one layer."""

    tokens: int = 2048
    """Tokens of the prompt (N)"""
    heads: int = setting(1)
    """Attention heads"""
    head_dim: int = setting(128)
    """Numbers in a head (d)"""
    tile: int = setting(256)
    """Queries of a tile"""
    hardware: str = ""
    """A device by name, whose roofs tell how long it takes"""


def attention(inputs: AttentionInputs, sheet: Sheet) -> None:
    count, dim, heads = inputs.tokens, inputs.head_dim, inputs.heads
    positive("tokens", min(count, dim, heads, inputs.tile))
    plain = heads * figures.plain_attention_bytes(count, dim)
    tiled = heads * figures.tiled_attention_bytes(count, dim, inputs.tile)
    scores = figures.scores_bytes(count, heads)
    sheet.put("scores_bytes", scores, "bytes", "scores and probabilities, written and read", "4 N^2 x 2 B x heads")
    sheet.put("plain_bytes", plain, "bytes", "plain attention", "(4 N^2 + 4 N d) x 2 B x heads")
    sheet.put("tiled_bytes", tiled, "bytes", "tiled attention", "(2 N d + ceil(N / tile) x 2 N d) x 2 B x heads")
    sheet.put("saving", plain / tiled, "", "times less traffic", "plain_bytes / tiled_bytes")
    work = heads * figures.attention_flops(count, dim)
    sheet.put("work", work, "flop", "operations, either way", "4 N^2 d x heads")
    sheet.put("plain_intensity", work / plain, "flop/byte", "intensity, plain", "work / plain_bytes")
    sheet.put("tiled_intensity", work / tiled, "flop/byte", "intensity, tiled", "work / tiled_bytes")
    if inputs.hardware:
        device = DeviceNumbers(DeviceInputs(hardware=inputs.hardware), sheet)
        sheet.put("ridge", device.ridge, "flop/byte", "ridge of the device", "flops / bandwidth")
        for name, moved in (("plain", plain), ("tiled", tiled)):
            seconds = figures.roof_s(work, moved, device.ceilings, device.flops)
            formula = f"the longer of {name}_bytes / bandwidth and work / flops"
            sheet.put(f"{name}_s", seconds, "s", f"the least it takes, {name}", formula)


@dataclass(frozen=True)
class SpeculationInputs:
    """How many tokens a checked draft gives, and what is gained."""

    acceptance: float = setting(0.8)
    """Share of drafted tokens that the model accepts (alpha)"""
    drafts: int = setting(5)
    """Tokens drafted for one check (gamma)"""
    draft_cost: float | None = setting(None)
    """What drafting one token costs, as a share of a step of the model (default: draft-parameters / parameters, else 0)"""
    draft_parameters: float | None = setting(None)
    """Parameters of the draft model"""
    parameters: float | None = setting(None)
    """Parameters of the model"""
    step_ms: float | None = setting(None)
    """A decode step without speculation"""


def speculation(inputs: SpeculationInputs, sheet: Sheet) -> None:
    cost, origin = inputs.draft_cost, "given"
    if cost is None:
        if (inputs.draft_parameters is None) != (inputs.parameters is None):
            raise ConfigError(
                "a draft's cost is the smaller model over the larger: give draft-parameters and parameters"
            )
        cost = inputs.draft_parameters / inputs.parameters if inputs.draft_parameters and inputs.parameters else 0.0
        origin = "draft parameters / parameters" if cost else "nothing is known of the draft"
    sheet.take("draft_cost", cost, "share", origin)
    tau = figures.tokens_per_round(inputs.acceptance, inputs.drafts)
    gain = figures.speculation_gain(inputs.acceptance, inputs.drafts, cost)
    sheet.put("tokens_per_round", tau, "tokens", "tokens a round (tau)", "(1 - a^(g + 1)) / (1 - a)")
    sheet.put("gain", gain, "", "times as fast", "tokens_per_round / (1 + drafts x draft_cost)")
    if inputs.step_ms is not None:
        step_s = positive("step_ms", inputs.step_ms) / 1e3
        sheet.put("tpot_s", step_s / gain, "s", "time a token", "step / gain")
    sheet.notes.append(
        "helps TPOT while the batch leaves compute idle; a prompt takes as long as before, so TTFT falls only where queues do"
    )


@dataclass(frozen=True)
class HierarchyInputs:
    """How long bytes take from each place they can lie in."""

    hardware: str = "h100"
    """A device by name"""
    moved: float = setting(1e9)
    """Bytes to read"""


def hierarchy(inputs: HierarchyInputs, sheet: Sheet) -> None:
    device = find(inputs.hardware)
    before = None
    for level in levels_of(device):
        key = level.name.lower().replace(" ", "_")
        sheet.take(f"{key}_bandwidth", level.bandwidth_bytes_per_s, "bytes/s", f"{device.name}, peak")
        seconds = positive("moved", inputs.moved) / level.bandwidth_bytes_per_s
        sheet.put(f"{key}_s", seconds, "s", f"from {level.name}", "moved / bandwidth")
        if before is not None:
            slower = seconds / before
            sheet.put(f"{key}_slower", slower, "", "times slower than the level inside it", "ratio of the two")
        before = seconds
