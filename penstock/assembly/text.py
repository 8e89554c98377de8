"""The words of a model by its name: what the server needs of it beside the engine."""

from collections import Counter
from pathlib import Path

from penstock.assembly.machines import is_arithmetic
from penstock.console.progress import ProgressBar
from penstock.runtime.files import ModelFiles, dummy_spec, open_files
from penstock.runtime.formats.gguf import GgufFile
from penstock.runtime.text.stream.styles import style_of_template
from penstock.runtime.text.template.chat import ChatTemplate
from penstock.runtime.text.tokenizer.byte_level import byte_tokenizer
from penstock.runtime.text.tokenizer.tokenizer import read_json
from penstock.service.server.text import NO_CARD, ModelCard, Text, sampling_defaults

TEMPLATE_KEY = "tokenizer.chat_template"
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def fetch(model: str) -> None:
    """See to it that the model's files are here, so that server and engine open the same ones."""
    if not is_arithmetic(model) and dummy_spec(model) is None:
        with ProgressBar() as progress:
            open_files(model, progress=progress)


def fetched_path(model: str) -> Path | None:
    """Where the model's files are; None for one that has none."""
    return None if is_arithmetic(model) or dummy_spec(model) is not None else open_files(model).path


def open_text(model: str) -> Text:
    """Tokenizer, template and reasoning style of a model."""
    if is_arithmetic(model):
        return Text(byte_tokenizer(), ChatTemplate(PLAIN_TEMPLATE), card=NO_CARD._replace(template=PLAIN_TEMPLATE))
    if (spec := dummy_spec(model)) is not None:
        card = NO_CARD._replace(
            template=PLAIN_TEMPLATE, num_parameters=spec.num_parameters, max_context=spec.max_context
        )
        return Text(byte_tokenizer(spec.vocab_size), ChatTemplate(PLAIN_TEMPLATE), card=card)
    files = open_files(model)
    template = files.chat_template
    style = None if template is None else style_of_template(template.source)
    source = "" if template is None else template.source
    card = card_of(files)._replace(template=source, has_reasoning=style is not None)
    files.tokenizer.at_least("")  # looks through the vocabulary once: now, not while a first client waits
    defaults = sampling_defaults(read_json(files.path / "generation_config.json"))
    return Text(files.tokenizer, template, style, card, defaults)


def card_of(files: ModelFiles) -> ModelCard:
    """What a model's files say of it before its vocabulary is read."""
    spec, checkpoint = files.spec, files.checkpoint
    source = checkpoint.metadata.get(TEMPLATE_KEY) if isinstance(checkpoint, GgufFile) else None
    template = source if isinstance(source, str) else ""
    sizes: Counter[str] = Counter()
    for name in checkpoint.names:
        tensor = checkpoint.tensor(name)
        sizes[tensor.dtype] += tensor.num_bytes
    return ModelCard(
        family=spec.architecture,
        num_parameters=spec.num_parameters,
        file_format="gguf" if files.is_gguf else "safetensors",
        quantization=sizes.most_common(1)[0][0] if sizes else "",
        size_bytes=sizes.total(),
        max_context=spec.max_context,
        can_generate=spec.generates,
        embedding_size=None if spec.generates else spec.hidden_size,
        template=template,
        has_reasoning=style_of_template(template) is not None,
    )
