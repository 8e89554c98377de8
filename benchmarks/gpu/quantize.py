"""A model of 7B's shape made smaller on a GPU: seconds a layer by GPTQ, memory, and decode steps of each format at 1, 32, 128.

    python -m benchmarks.gpu.quantize [--layers 3] [--folder /dev/shm] [--dry]

Weights are random and only a few layers are made: `minutes` is what 32 of them would take. Steps are those of the few layers,
beside bf16; `--dry` tries all of it with a tiny shape on any machine.
"""

import argparse
import itertools
import json
import resource
import shutil
import tempfile
import time
from pathlib import Path

import torch

from penstock import LLM, SamplingParams
from penstock.errors import PenstockError
from penstock.runtime.files import ModelFiles
from penstock.runtime.formats.tensor_file import PlannedTensor, new_safetensors
from penstock.tools.quantize.job import Making
from penstock.tools.quantize.schemes import SCHEMES, Method, quantization_config
from penstock.tools.quantize.target import MadeModel
from penstock.tools.quantize.walk import Original

LAYERS = 32
SHAPE = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}
DRY = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 512}
FORMATS = ("int4", "int8", "w8a8", "fp8", "mxfp4")
BATCHES = (1, 32, 128)


def checkpoint(folder: Path, shape: dict[str, int], num_layers: int, device: str) -> None:
    """A Llama of that shape in bf16, with a tokenizer of bytes."""
    hidden, width, vocab = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": num_layers, **shape}
    config |= {"num_key_value_heads": shape["num_attention_heads"], "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    config |= {"max_position_embeddings": 4096, "rope_theta": 1e4, "tie_word_embeddings": False, "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    sizes = {"model.embed_tokens": (vocab, hidden), "lm_head": (vocab, hidden), "model.norm": (hidden,)}
    for number in range(num_layers):
        stem = f"model.layers.{number}"
        sizes |= {f"{stem}.self_attn.{name}_proj": (hidden, hidden) for name in "qkvo"}
        sizes |= {f"{stem}.mlp.{name}_proj": (width, hidden) for name in ("gate", "up")}
        sizes |= {f"{stem}.mlp.down_proj": (hidden, width)}
        sizes |= {f"{stem}.{name}_layernorm": (hidden,) for name in ("input", "post_attention")}
    file = new_safetensors(
        folder / "model.safetensors", [PlannedTensor(f"{name}.weight", "BF16", size) for name, size in sizes.items()]
    )
    for name, size in sizes.items():
        numbers = torch.randn(size, device=device) * hidden**-0.5 if len(size) > 1 else torch.ones(size, device=device)
        file.put(f"{name}.weight", numbers.bfloat16().view(torch.uint8).cpu().numpy())
    file.close()
    vocabulary = {chr(0x100 + number): number for number in range(256)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))


def make(source: Path, out: Path, name: str, method: Method, tokens: torch.Tensor | None, device: str) -> list[float]:
    """Seconds after which each layer was begun, and the end of all."""
    files = ModelFiles(str(source), source)
    scheme = SCHEMES[name].in_groups(files.spec, None)
    original = Original(files.spec, files.model.recipes, files.checkpoint, torch.device(device))
    job = Making(original, MadeModel(files, out, scheme.gguf, "model.gguf"), scheme, method, tokens)
    begin_s, times = time.perf_counter(), []
    job.run(lambda stage, done, total: times.append(time.perf_counter() - begin_s))
    job.target.finish(quantization_config(job.scheme, method, ["lm_head"]), {}, "")
    return times


def steps(model: Path, device: str, weights: str) -> dict[str, float]:
    """Milliseconds a decode step takes, by sequences."""
    found = {}
    options = {"max_context": 512, "prefix_caching": False, "speculate": "off", "weights": weights}
    with LLM(str(model), device=device, max_sequences=max(BATCHES), **options) as llm:
        for count in BATCHES:
            prompts = [[(3 * n + i) % 250 + 2 for i in range(16)] for n in range(count)]
            took = []
            for length in (8, 72, 8, 72):
                begin_s = time.perf_counter()
                llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True))
                took.append(time.perf_counter() - begin_s)
            found[str(count)] = round((took[3] - took[2]) / 64 * 1e3, 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    device, shape = ("cpu", DRY) if asked.dry else ("cuda", SHAPE)
    with tempfile.TemporaryDirectory(dir=asked.folder) as scratch:
        source = Path(scratch) / "whole"
        source.mkdir()
        checkpoint(source, shape, asked.layers, device)
        tokens = torch.randint(shape["vocab_size"], (2 if asked.dry else 32, 64 if asked.dry else 512))
        times = make(source, Path(scratch) / "gptq", "int4", "gptq", tokens, device)
        layers = [b - a for a, b in itertools.pairwise(times)]
        report = {
            "seconds_a_layer": [round(each, 2) for each in layers],
            "before_layers_s": round(times[0], 2),
            "minutes": round((times[0] + LAYERS * min(layers)) / 60, 2),
            "device_peak_gb": 0.0 if asked.dry else round(torch.cuda.max_memory_allocated() / 1e9, 2),
            "host_peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
            "layer_gb": round(_layer_bytes(shape) / 1e9, 3),
        }
        print(json.dumps(report), flush=True)
        shutil.rmtree(Path(scratch) / "gptq")
        print(json.dumps({"bf16": steps(source, device, "auto")}), flush=True)
        for name in FORMATS:
            out = Path(scratch) / name
            try:
                make(source, out, name, "round", None, device)
                print(json.dumps({name: steps(out, device, "packed" if name != "fp8" else "auto")}), flush=True)
            except PenstockError as error:
                print(json.dumps({name: str(error)}), flush=True)
            shutil.rmtree(out, ignore_errors=True)


def _layer_bytes(shape: dict[str, int]) -> int:
    """Of one layer in float32, as it is walked through."""
    return 4 * shape["hidden_size"] * (4 * shape["hidden_size"] + 3 * shape["intermediate_size"])


if __name__ == "__main__":
    main()
