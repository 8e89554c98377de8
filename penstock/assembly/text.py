"""The words of a model by its name: what the server needs of it beside the engine."""

from penstock.assembly.machines import is_arithmetic
from penstock.console.progress import ProgressBar
from penstock.files import dummy_spec, no_words, open_files
from penstock.server.text import Text
from penstock.text.stream.styles import style_of_template
from penstock.text.template.chat import ChatTemplate
from penstock.text.tokenizer.byte_level import byte_tokenizer

PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def fetch(model: str) -> None:
    """See to it that the model's files are here, so that server and engine open the same ones."""
    if not is_arithmetic(model) and dummy_spec(model) is None:
        with ProgressBar() as progress:
            open_files(model, progress=progress)


def open_text(model: str) -> Text:
    """Tokenizer, template and reasoning style of a model."""
    if is_arithmetic(model):
        return Text(byte_tokenizer(), ChatTemplate(PLAIN_TEMPLATE))
    if dummy_spec(model) is not None:
        raise no_words(model)
    files = open_files(model)
    template = files.chat_template
    return Text(files.tokenizer, template, None if template is None else style_of_template(template.source))
