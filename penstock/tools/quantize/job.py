"""One model made smaller: tensors planned, then layer by layer calibrated, rounded, written, and gone on from.

In memory at a time: one layer (on a GPU also the next one), what was seen of its inputs, and the hidden states of the
calibration text. After each layer the job can be stopped, and goes on from there when it is started again.
"""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from penstock.errors import ConfigError, PenstockError
from penstock.runtime.formats.tensor_file import PlannedTensor, TensorFile
from penstock.runtime.layers.decoder import Decoder
from penstock.runtime.layers.layer import AnyLayer
from penstock.runtime.models.spec import only_gqa
from penstock.tools.quantize import gptq
from penstock.tools.quantize.encodings import FP8_MOST, AnyCodes, BlockEncoding, Encoding, Float8Encoding
from penstock.tools.quantize.integers import IntegerEncoding
from penstock.tools.quantize.mixed import choose
from penstock.tools.quantize.observe import ObservedLinear, ObservedProjection, SeenInputs, observed
from penstock.tools.quantize.placement import PlacedRows, leaves, splits_of
from penstock.tools.quantize.scaling import scale_awq, smooth
from penstock.tools.quantize.schemes import Method, Scheme, mixed_candidates
from penstock.tools.quantize.sensitivity import measure
from penstock.tools.quantize.target import MadeModel
from penstock.tools.quantize.walk import LayerWalk, Original

JOURNAL, STATES = "progress.json", "states.bin"
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor of the file: which rows of a parameter it holds, and how."""

    leaf: PlacedRows
    encoding: Encoding
    shape: tuple[int, ...]


@dataclass
class Making:
    original: Original
    target: MadeModel
    scheme: Scheme
    method: Method
    tokens: Tensor | None = None
    """Calibration text [sequences, tokens]; none for methods that need none."""
    damping: float = gptq.DAMPING
    kv_scales: bool = False
    mixture: dict[str, Any] = field(default_factory=dict)
    """What `mix` has chosen and measured."""
    errors: list[dict[str, Any]] = field(default_factory=list)
    """Of every layer: by matrix the relative error behind it."""

    def run(self, progress: Progress) -> None:
        """Leaves either the whole of what was asked for, or what a later run goes on from; after a fault, nothing."""
        self.target.check()
        file = self.target.open(self.plan(), self.scheme.file_type)
        try:
            self._fill(file, progress)
            file.sync()
        except PenstockError:
            file.close()
            shutil.rmtree(self.target.partial, ignore_errors=True)
            raise
        finally:
            file.close()
        for name in (JOURNAL, STATES):
            (self.target.partial / name).unlink(missing_ok=True)

    def plan(self) -> list[PlannedTensor]:
        """All tensors of the file, in their order."""
        planned = [
            tensor
            for name, parameter in self._parameters()
            for placed in self.placed(name, tuple(parameter.shape))
            for tensor in placed.encoding.tensors(placed.leaf.name, placed.shape)
        ]
        if self.target.gguf:
            planned += [PlannedTensor(name, "F32", (len(each),)) for name, each in self._factors().items()]
        elif self.kv_scales:
            numbers = range(self.target.spec.num_layers)
            planned += [PlannedTensor(_scale_name(number, part), "F32", (1,)) for number in numbers for part in "kv"]
        return planned

    def mix(self, bits_per_weight: float, tokens: Tensor, progress: Progress) -> None:
        """Choose a format for each matrix of a layer, so that all of them together take so many bits a weight."""
        encodings = mixed_candidates(self.scheme)
        offers = measure(self.original, tokens, encodings, progress)
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters() if name in offers}
        num_weights = sum(math.prod(shape) for shape in shapes.values())
        chosen = choose(offers, bits_per_weight * num_weights)
        overrides = {
            placed.leaf.name: encodings[number]
            for name, number in chosen.items()
            for placed in self.placed(name, shapes[name])
            if encodings[number].fits(placed.shape[-1])
        }
        self.scheme = replace(self.scheme, overrides=overrides)
        used = sum(offers[name][number].bits for name, number in chosen.items()) / num_weights
        self.mixture = {
            "bits_of_layers": round(used, 3),
            "matrices": {
                name: [number, *(round(each.harm, 6) for each in offers[name])] for name, number in chosen.items()
            },
            "formats": [_named(encoding) for encoding in encodings],
        }

    def placed(self, name: str, shape: tuple[int, ...]) -> list[Placed]:
        """Where a parameter goes."""
        is_stacked = "experts." in name
        num_rows = shape[1] if is_stacked else shape[0]
        found = []
        for leaf in leaves(self.target.recipes[name], num_rows, splits_of(self.target.spec, name)):
            size: tuple[int, ...] = (len(leaf.rows), *shape[2 if is_stacked else 1 :])
            if is_stacked and leaf.item is None:
                size = (shape[0], *size)
            encoding = self.scheme.choose(leaf.name, name, self.target.spec, size[-1], len(size))
            if leaf.swapped and not isinstance(encoding, BlockEncoding):
                encoding = BlockEncoding("BF16")
            found.append(Placed(leaf, encoding, size[::-1] if leaf.swapped else size))
        return found

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        ends = [
            (name, each) for name, each in self.original.ends().named_parameters() if not name.startswith("layers.")
        ]
        yield from (pair for pair in ends if pair[0].startswith(("embedding", "positions", "token_types")))
        for number in range(self.target.spec.num_layers):
            for name, each in self.original.layer_shape(number).named_parameters():
                yield f"layers.{number}.{name}", each
        yield from (pair for pair in ends if not pair[0].startswith(("embedding", "positions", "token_types")))

    def _factors(self) -> dict[str, list[float]]:
        factors = dict(self.target.settings()[1])
        checkpoint = self.original.checkpoint
        for name in ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"):
            if name in checkpoint.names and self.target.files.is_gguf:
                factors[name] = np.frombuffer(checkpoint.tensor(name).data.tobytes(), np.float32).tolist()
        return factors

    def _fill(self, file: TensorFile, progress: Progress) -> None:
        walk = None if self.tokens is None else LayerWalk(self.original, self.tokens)
        done = self._resume(walk)
        total = self.target.spec.num_layers
        if done == 0:
            self._write_ends(file)
            if walk is not None:
                walk.begin()
        for number, model in enumerate(self._layers(done, total), done):
            progress("layers", number, total)
            self._layer(number, model, walk, file)
            file.sync()
            self._keep(number + 1, walk)
        progress("layers", total, total)

    def _layers(self, first: int, end: int) -> Iterator[Decoder]:
        """With numbers. On a GPU the next one is read beside the work on one, but for the first, which records launches."""
        with ThreadPoolExecutor(max_workers=1) as reader:
            beside = self.original.device.type == "cuda"
            coming = None
            for number in range(first, end):
                model = self.original.layer(number) if coming is None else coming.result()
                coming = reader.submit(self.original.layer, number + 1) if beside and first < number < end - 1 else None
                yield model

    def _write_ends(self, file: TensorFile) -> None:
        for name, _ in self._parameters():
            if not name.startswith("layers."):
                self._write(file, name, self.original.parameter(name), None)
        if self.target.gguf:
            for name, factors in self._factors().items():
                file.put(name, np.array(factors, np.float32))

    @torch.inference_mode()
    def _layer(self, number: int, model: Decoder, walk: LayerWalk | None, file: TensorFile) -> None:
        layer = cast(AnyLayer, model.layers[0])
        seen: dict[str, ObservedLinear] = {}
        if walk is not None:
            with observed(layer, self.method != "round", sizes=self.method in ("awq", "smooth")) as seen:
                walk.run(model, keep=False)
        if self.method == "awq" and isinstance(self.scheme.encoding, IntegerEncoding):
            scale_awq(layer, seen, self.scheme.encoding)
        elif self.method == "smooth":
            smooth(layer, seen)
        errors: dict[str, Any] = {"layer": number}
        for name, parameter in list(layer.named_parameters()):
            inputs = _inputs(name, seen)
            restored = self._write(file, f"layers.{number}.{name}", parameter.data, inputs)
            if parameter.ndim > 1:
                errors[name.removesuffix(".weight")] = round(_relative_error(parameter.data, restored, inputs), 6)
            parameter.data.copy_(restored)
        if self.kv_scales and not self.target.gguf:
            self._write_kv_scales(number, seen, file)
        self.errors.append(errors)
        if walk is not None:
            walk.run(model)

    def _write_kv_scales(self, number: int, seen: dict[str, ObservedLinear], file: TensorFile) -> None:
        """The largest key and the largest value of the calibration text reach the largest 8-bit float."""
        spec, watched = only_gqa(self.target.spec.layers[number].attention, "quantized here"), seen.get("attention.qkv")
        if not isinstance(watched, ObservedProjection):
            raise ConfigError("--kv-scales needs calibration text; give it with --data")
        keys, values = watched.most[spec.q_size :].chunk(2)
        for part, most in (("k", keys), ("v", values)):
            scale = np.array([float(most.max()) / FP8_MOST], np.float32)
            file.put(_scale_name(number, part), scale)

    def _write(self, file: TensorFile, name: str, values: Tensor, inputs: SeenInputs | None) -> Tensor:
        """All tensors that a parameter goes to; returns its numbers as they will be read."""
        restored = torch.empty_like(values)
        flat, flat_restored = (each.view(-1, each.shape[-1]) if each.ndim > 1 else each for each in (values, restored))
        together: dict[Encoding, list[tuple[Placed, Tensor]]] = {}
        for placed in self.placed(name, tuple(values.shape)):
            leaf = placed.leaf
            if values.ndim == 1 or leaf.minus or leaf.swapped:
                numbers = leaf.of(values)
                codes = placed.encoding.round(numbers.reshape(1, -1) if numbers.ndim == 1 else numbers)
                self._put(file, placed, codes)
                read = codes.restored().view(numbers.shape) + leaf.minus
                restored[leaf.rows.to(values.device)] = (read.t() if leaf.swapped else read).to(values.dtype)
                continue
            rows = _flat_rows(leaf, values.shape)
            if isinstance(placed.encoding, Float8Encoding) and placed.encoding.block is not None:
                flat_restored[rows] = self._code(file, [(placed, rows)], flat, inputs)
            else:
                together.setdefault(placed.encoding, []).append((placed, rows))
        for parts in together.values():
            flat_restored[torch.cat([rows for _, rows in parts])] = self._code(file, parts, flat, inputs)
        return restored

    def _code(
        self, file: TensorFile, parts: list[tuple[Placed, Tensor]], flat: Tensor, inputs: SeenInputs | None
    ) -> Tensor:
        codes = self._rounded(flat[torch.cat([rows for _, rows in parts])].float(), parts[0][0].encoding, inputs)
        begin = 0
        for placed, rows in parts:
            self._put(file, placed, codes.take(torch.arange(begin, begin + len(rows))))
            begin += len(rows)
        return codes.restored().to(flat.dtype)

    def _rounded(self, weight: Tensor, encoding: Encoding, inputs: SeenInputs | None) -> AnyCodes:
        if not isinstance(encoding, IntegerEncoding):
            return encoding.round(weight, None if inputs is None else inputs.importance)
        if self.method in ("gptq", "smooth") and inputs is not None:
            return gptq.solve(weight, inputs.hessian, encoding, self.damping)
        return encoding.round(weight)

    def _put(self, file: TensorFile, placed: Placed, codes: Any) -> None:
        for name, array in placed.encoding.write(placed.leaf.name, codes).items():
            file.put(name, array)

    # What a later run goes on from

    @property
    def _identity(self) -> str:
        """Tells jobs apart: model, scheme, method, calibration text."""
        digest = hashlib.sha256(self.target.files.fingerprint.encode())
        digest.update(repr((self.scheme, self.method, self.damping, self.kv_scales)).encode())
        if self.tokens is not None:
            digest.update(self.tokens.numpy().tobytes())
        return digest.hexdigest()

    def _resume(self, walk: LayerWalk | None) -> int:
        """Layers that are done."""
        path = self.target.partial / JOURNAL
        try:
            kept = json.loads(path.read_text())
            states = self.target.partial / STATES
            if kept["job"] != self._identity:
                return 0
            if walk is not None:
                shape = (*walk.tokens.shape, self.target.spec.hidden_size)
                numbers = np.fromfile(states, np.float32)
                if numbers.size != math.prod(shape) or kept["sum"] != float(numbers.sum(dtype=np.float64)):
                    return 0
                walk.states = torch.from_numpy(numbers.reshape(shape)).to(self.original.device)
            self.errors[:] = kept["errors"]
            return int(kept["layers"])
        except (OSError, ValueError, KeyError):
            return 0

    def _keep(self, done: int, walk: LayerWalk | None) -> None:
        kept: dict[str, Any] = {"job": self._identity, "layers": done, "errors": self.errors}
        if walk is not None:
            numbers = walk.states.float().cpu().numpy()
            kept["sum"] = float(numbers.sum(dtype=np.float64))
            numbers.tofile(self.target.partial / (STATES + ".new"))
            (self.target.partial / (STATES + ".new")).replace(self.target.partial / STATES)
        new = self.target.partial / (JOURNAL + ".new")
        new.write_text(json.dumps(kept))
        new.replace(self.target.partial / JOURNAL)


def _scale_name(number: int, part: str) -> str:
    return f"model.layers.{number}.self_attn.{part}_scale"


def _flat_rows(leaf: PlacedRows, shape: torch.Size) -> Tensor:
    """Rows of a parameter as numbered over all its experts."""
    if len(shape) < 3:
        return leaf.rows
    items = range(shape[0]) if leaf.item is None else (leaf.item,)
    return torch.cat([leaf.rows + item * shape[1] for item in items])


def _inputs(parameter: str, seen: dict[str, ObservedLinear]) -> SeenInputs | None:
    """Experts read what their router reads; what reaches their second matrix is not watched."""
    path = "mlp.router" if parameter == "mlp.experts.gate_up.weight" else parameter.removesuffix(".weight")
    return seen[path].inputs if path in seen else None


def _relative_error(weight: Tensor, restored: Tensor, inputs: SeenInputs | None) -> float:
    """Of what comes out behind the matrix, where its inputs were seen; else of its numbers."""
    off, weight = restored.float() - weight.float(), weight.float()
    if inputs is not None and off.ndim == 2:
        scale = inputs.importance.clamp(min=0).sqrt()
        off, weight = off * scale, weight * scale
    return float(off.norm() / weight.norm().clamp(min=1e-12))


def _named(encoding: Encoding) -> str:
    if isinstance(encoding, IntegerEncoding):
        return f"int{encoding.bits} in groups of {encoding.group}"
    return encoding.dtype if isinstance(encoding, BlockEncoding) else str(encoding)
