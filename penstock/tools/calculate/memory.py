"""What is held: weights, keys and values, the users that fit, what prefixes and pages save, what it takes to move them."""

from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError
from penstock.fields import setting
from penstock.tools.calculate.sheet import Sheet, positive
from penstock.tools.calculate.subject import DeviceInputs, DeviceNumbers, ModelInputs, ModelNumbers
from penstock.tools.planner import figures


@dataclass(frozen=True)
class KvInputs(ModelInputs):
    """How large the KV cache grows."""

    context: int = 4096
    """Tokens of a sequence"""
    sequences: int = setting(1)
    """Sequences held at once"""
    used: int | None = setting(None)
    """Tokens that a sequence really has, where --context is reserved for it"""
    block: int = setting(16)
    """Tokens of a block, where the cache is paged"""


def kv(inputs: KvInputs, sheet: Sheet) -> None:
    model = ModelNumbers(inputs, sheet)
    each = model.kv_bytes_per_token
    count = int(positive("context", inputs.context)) * int(positive("sequences", inputs.sequences))
    sheet.put("bytes_per_token", each, "bytes", "a token", "2 x layers x kv_heads x head_dim x bytes")
    sheet.put("sequence_bytes", each * inputs.context, "bytes", "a sequence", "bytes_per_token x context")
    sheet.put("total_bytes", each * count, "bytes", "all sequences", "sequence_bytes x sequences")
    if model.has_heads:
        total = model.mha_bytes_per_token * count
        sheet.put(
            "mha_bytes", total, "bytes", "if every head had its own", "2 x layers x heads x head_dim x bytes x tokens"
        )
    if model.is_known:
        crossing = model.weight_bytes / (each * inputs.sequences)
        sheet.put("weight_bytes", model.weight_bytes, "bytes", "weights", "parameters x bits / 8")
        sheet.put(
            "crossing_tokens", crossing, "tokens", "context at which KV equals weights", "weights / (token x sequences)"
        )
    if inputs.used is not None:
        held = figures.paged_tokens(inputs.used, int(positive("block", inputs.block)))
        reserved, paged = each * inputs.context, each * held
        sheet.put("reserved_bytes", reserved, "bytes", "a sequence, reserved", "bytes_per_token x context")
        sheet.put("paged_bytes", paged, "bytes", "a sequence, in blocks", "bytes_per_token x whole blocks of used")
        sheet.put("paging_gain", reserved / paged, "", "sequences for one", "reserved_bytes / paged_bytes")
        sheet.put("reserved_waste", 1 - inputs.used / inputs.context, "share", "wasted, reserved", "1 - used / context")
        sheet.put("paged_waste", 1 - inputs.used / held, "share", "wasted, in blocks", "1 - used / held")


@dataclass(frozen=True)
class MemoryInputs(ModelInputs, DeviceInputs):
    """Does it fit, and on how many devices."""

    context: int = 4096
    """Tokens of a sequence"""
    batch: int = 1
    """Sequences held at once"""


def memory(inputs: MemoryInputs, sheet: Sheet) -> None:
    model, device = ModelNumbers(inputs, sheet), DeviceNumbers(inputs, sheet)
    count = inputs.batch * inputs.context
    kv_bytes = count * model.kv_bytes_per_token
    activations = figures.activation_bytes(inputs.batch, inputs.context, model.hidden_size)
    total = model.weight_bytes + kv_bytes + activations
    sheet.put("weight_bytes", model.weight_bytes, "bytes", "weights", "parameters x bits / 8")
    sheet.put("kv_bytes", kv_bytes, "bytes", "KV cache", "batch x context x kv_bytes_per_token")
    sheet.put("activation_bytes", activations, "bytes", "activations", "8 x batch x context x hidden")
    sheet.put("total_bytes", total, "bytes", "in all", "weights + KV + activations")
    if not inputs.hardware and inputs.memory is None:
        sheet.notes.append("give --hardware or memory to learn whether it fits")
        return
    num_devices = figures.devices_by_size(total, device.memory_bytes)
    by_layout = figures.devices_by_layout(num_devices, int(model.number("heads")))
    sheet.put("fits", total <= device.memory_bytes, "", "fits one device", "total_bytes <= memory")
    sheet.put("devices_by_size", num_devices, "", "devices by size", "ceil(total_bytes / memory)")
    sheet.put("devices_by_layout", by_layout, "", "devices by layout", "the next count that divides the heads")
    sheet.notes.append("penstock plan sizes it as the engine does: blocks, workspace and margin included")


@dataclass(frozen=True)
class UsersInputs(ModelInputs, DeviceInputs):
    """How many users fit, by memory and by compute."""

    context: int = 4096
    """Tokens that a user holds"""
    overhead: float = setting(0.0)
    """Bytes of a device that neither weights nor KV may have"""
    devices: int = setting(1)
    """Devices of a group that share one copy of the model"""
    users: int | None = None
    """Users to serve"""
    price: float | None = None
    """Dollars an hour of one device"""


def users(inputs: UsersInputs, sheet: Sheet) -> None:
    model, device = ModelNumbers(inputs, sheet), DeviceNumbers(inputs, sheet)
    count = int(positive("devices", inputs.devices))
    free = count * (device.memory_bytes - inputs.overhead) - model.weight_bytes
    each = figures.sequences_that_fit(free, model.kv_bytes_per_token, positive("context", inputs.context))
    one = model.kv_bytes_per_token * inputs.context
    sheet.put("weight_bytes", model.weight_bytes, "bytes", "weights", "parameters x bits / 8")
    sheet.put("free_bytes", free, "bytes", "left for KV, of a group", "devices x (memory - overhead) - weights")
    sheet.put("user_bytes", one, "bytes", "KV of one user", "context x kv_bytes_per_token")
    sheet.put("users_per_group", each, "", "users a group, by memory", "floor(free_bytes / user_bytes)")
    if device.knows("flops") and device.knows("bandwidth"):
        ceiling = figures.compute_ceiling(device.ridge, model.bits)
        sheet.put("compute_ceiling", ceiling, "", "users, by compute", "ridge x bytes a weight / 2")
    if inputs.users is None or not each:
        return
    groups = -(-inputs.users // each)
    sheet.put("groups", groups, "", "groups", "ceil(users / users_per_group)")
    sheet.put("devices", groups * count, "", "devices", "groups x devices of a group")
    if inputs.price is not None:
        dollars = groups * count * inputs.price * 24.0
        sheet.put("dollars_per_day", dollars, "$", "a day", "devices x price x 24")


@dataclass(frozen=True)
class PrefixInputs(ModelInputs, DeviceInputs):
    """What a cached beginning saves."""

    prefix: int = setting(2000)
    """Tokens that all prompts begin with"""
    own: int = setting(80)
    """Tokens of a prompt after them"""
    requests: int = setting(8)
    """Requests (a day)"""
    block: int = setting(16)
    """Tokens of a block"""
    token_ms: float | None = setting(None)
    """Time to compute one prompt token (default: by model and device)"""


def prefix(inputs: PrefixInputs, sheet: Sheet) -> None:
    token_s = _token_s(inputs, sheet)
    cached = figures.cached_tokens(inputs.prefix, int(positive("block", inputs.block)))
    whole = inputs.prefix + inputs.own
    sheet.put("cached_tokens", cached, "tokens", "found in the cache", "floor(prefix / block) x block")
    sheet.put("cold_s", whole * token_s, "s", "TTFT, cold", "(prefix + own) x time a token")
    sheet.put("warm_s", (whole - cached) * token_s, "s", "TTFT, warm", "(prefix + own - cached) x time a token")
    before, after = inputs.requests * inputs.prefix, inputs.prefix + (inputs.requests - 1) * (inputs.prefix - cached)
    sheet.put("prefix_tokens_before", before, "tokens", "prefix tokens computed, without", "requests x prefix")
    sheet.put(
        "prefix_tokens_after", after, "tokens", "prefix tokens computed, with", "prefix once, then prefix - cached"
    )
    sheet.notes.append("equal from the first token on: what varies belongs last")


def _token_s(inputs: PrefixInputs, sheet: Sheet) -> float:
    if inputs.token_ms is not None:
        sheet.take("token_s", positive("token_ms", inputs.token_ms) / 1e3, "s")
        return inputs.token_ms / 1e3
    model, device = ModelNumbers(inputs, sheet), DeviceNumbers(inputs, sheet, inputs.weights)
    if not model.is_known or not device.knows("flops"):
        raise ConfigError("a prompt token's time is not known: give token-ms, or --model and --hardware")
    seconds = figures.forward_flops(model.active_parameters, 1) / device.flops
    sheet.take("token_s", seconds, "s", "2 x active parameters / flops")
    return seconds


Way = Literal["interconnect", "network"]


@dataclass(frozen=True)
class TransferInputs(ModelInputs):
    """How long keys and values take to travel from one device to another."""

    tokens: int = 2048
    """Tokens whose keys and values travel"""
    link: float | None = setting(None)
    """Bytes a second of the link, one way (50e9)"""
    hardware: str = ""
    """A device by name, whose link is taken instead"""
    way: Way = setting("network")
    """Which of its links: to its peers in the machine, or to another machine"""
    moved: float | None = setting(None)
    """Bytes that travel, instead of a model's keys and values"""


def transfer(inputs: TransferInputs, sheet: Sheet) -> None:
    moved = inputs.moved
    if moved is None:
        moved = ModelNumbers(inputs, sheet).kv_bytes_per_token * inputs.tokens
    link = link_of(inputs.link, inputs.hardware, inputs.way, sheet)
    sheet.put("moved", moved, "bytes", "bytes that travel", "tokens x kv_bytes_per_token")
    sheet.put("transfer_s", moved / link, "s", "on the way", "moved / link")


def link_of(given: float | None, hardware: str, way: Way, sheet: Sheet) -> float:
    """Bytes a second one way: the whole of it by the book, the share that large messages reach otherwise."""
    from penstock.tools.cost.hardware import LINK_FRACTION, find

    if given is not None:
        sheet.take("link", positive("link", given), "bytes/s")
        return given
    if not hardware:
        raise ConfigError("the link is not known: give link, or --hardware NAME")
    found = find(hardware)
    link = found.link(2) if way == "interconnect" else found.network
    reached = link.bandwidth_bytes_per_s
    if sheet.basis == "textbook":
        sheet.take("link", reached / LINK_FRACTION, "bytes/s", f"peak of {link.kind} of {found.name}, one way")
        return reached / LINK_FRACTION
    sheet.take("link", reached, "bytes/s", f"{LINK_FRACTION} of the peak of {link.kind} of {found.name}, one way")
    return reached


@dataclass(frozen=True)
class ColdstartInputs(ModelInputs):
    """How long a new replica takes until its first token."""

    provision_s: float = setting(60.0)
    """Seconds until the machine is there"""
    link: float = setting(7e9)
    """Bytes a second that weights are read with (disk 7e9, network 1e9)"""
    engine_s: float = setting(20.0)
    """Seconds an engine takes to start beside that: imports, kernels, first step"""
    moved: float | None = setting(None)
    """Bytes of the weights, instead of a model's"""


def coldstart(inputs: ColdstartInputs, sheet: Sheet) -> None:
    moved = ModelNumbers(inputs, sheet).weight_bytes if inputs.moved is None else inputs.moved
    load_s = moved / positive("link", inputs.link)
    sheet.put("moved", moved, "bytes", "weights", "parameters x bits / 8")
    sheet.put("provision_s", inputs.provision_s, "s", "machine", "given")
    sheet.put("load_s", load_s, "s", "weights on the way", "moved / link")
    sheet.put("engine_s", inputs.engine_s, "s", "engine", "given")
    total_s = inputs.provision_s + load_s + inputs.engine_s
    sheet.put("total_s", total_s, "s", "until the first token", "the sum of the three")
