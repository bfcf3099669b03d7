"""What the agents read and hand on, as siiRL calls it."""

from string import Template
from typing import Any


def pre_process(tokenizer: Any, prompt_id: list[int], obs: str | None, pre_chat_template: str) -> list[int]:
    """Return the tokens of a chat with the text so far and the environment's, as the template places them."""
    text = tokenizer.decode(prompt_id, skip_special_tokens=True)
    content = Template(pre_chat_template).substitute(prompt=text, obs=obs or "")
    ids: list[int] = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, return_dict=False
    )
    return ids


def post_process(tokenizer: Any, prompt_id: list[int], response_id: list[int], post_chat_template: str) -> list[int]:
    """Return the tokens of the text so far, a separator and the agent's turn."""
    text = tokenizer.decode(prompt_id, skip_special_tokens=True) + post_chat_template
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids + response_id
