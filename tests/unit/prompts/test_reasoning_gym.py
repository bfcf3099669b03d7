"""Generated tasks of reasoning-gym: splits without repetition, several tasks, and their own verifiers."""

import pytest

from embodyflow.config.composition.compose import compose_config
from embodyflow.errors import ConfigError
from embodyflow.prompts.prompt_config import ReasoningGymConfig
from embodyflow.prompts.reasoning_gym import ReasoningGymPrompts, build_tokenizer
from embodyflow.rewards.functions import reasoning_gym
from embodyflow.rewards.functions.reasoning_gym import score
from embodyflow.rewards.interface import Sample, Score

SPLITS = ("train", "validation", "demo")
TASKS = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    "spell_backward": {"min_word_len": 3, "max_word_len": 4},
}


def config(**values):
    return ReasoningGymConfig(**{"tasks": TASKS, "num_train": 40, "num_validation": 10, "num_demos": 5} | values)


def sample_of(prompt, response):
    row = {"ground_truth": prompt.ground_truth, "data_source": prompt.data_source, "row": prompt.row}
    return Sample(uid=0, prompt="", response=response, num_tokens=1, finished=True, **row)


def test_a_missing_package_is_one_line_before_anything_starts(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym", None)
    monkeypatch.setitem(__import__("sys").modules, "reasoning_gym.factory", None)
    with pytest.raises(ConfigError, match=r"^data.name=reasoning_gym: .*EXTRAS=dev,reasoning") as refusal:
        compose_config(["experiment=reasoning_gym", "run_id=none"])
    assert len(str(refusal.value).splitlines()) == 1


def test_settings_that_the_source_makes_itself_are_refused():
    with pytest.raises(ValueError, match=r"gcd\.seed: is set by split_seed"):
        config(tasks={"gcd": {"seed": 3}})


def test_a_sample_of_other_data_is_refused():
    with pytest.raises(ValueError, match="needs rows of data=reasoning_gym"):
        score(Sample(0, "", "## 1", "1", "sums", 1, True))


def test_only_an_answer_after_the_thinking_counts(monkeypatch):
    monkeypatch.setattr(reasoning_gym, "_verifier", lambda *task: lambda given, entry: float(given == entry["answer"]))
    rewards = []
    for response in ("<think>## 2</think> ## 3", "<think>## 3</think> ## 2", "<think>perhaps ## 2", "## 2"):
        row = {"entry": {"answer": "2"}}
        rewards.append(score(Sample(0, "", response, None, "sums", 1, True, row=row)).reward)
    assert rewards == [0.0, 1.0, 0.0, 1.0]


def evaluated(given, entry):
    """Return the score of an answer as several verifiers find it: by evaluating it."""
    return eval(given) == eval(entry["answer"]) if given != "nan" else float(given)


@pytest.mark.parametrize("answer", ["1/0", "__import__('sys').exit()", "no such thing", "nan", "(" * 1000, "[]["])
def test_an_answer_on_which_the_verifier_fails_is_wrong_and_counted(answer, monkeypatch):
    monkeypatch.setattr(reasoning_gym, "_verifier", lambda *task: evaluated)
    row = {"entry": {"answer": "2"}}
    assert score(Sample(0, "", f"## {answer}", None, "sums", 1, True, row=row)) == Score(
        0.0, False, {"verifier_failed": 1.0}
    )
    right = score(Sample(0, "", "## 1 + 1", None, "sums", 1, True, row=row))
    assert right == Score(1.0, True, {"verifier_failed": 0.0})


def test_a_problem_that_its_own_verifier_cannot_grade_is_an_error(monkeypatch):
    monkeypatch.setattr(reasoning_gym, "_verifier", lambda *task: evaluated)
    row = {"entry": {"answer": "no Python"}}
    with pytest.raises(ValueError, match="the verifier of sums cannot grade the problem, whose own answer is 'no Pyth"):
        score(Sample(0, "", "## ?", None, "sums", 1, True, row=row))


class TestWithThePackage:
    @pytest.fixture(autouse=True)
    def package(self):
        pytest.importorskip("reasoning_gym", reason="needs the extra reasoning")

    def test_each_question_is_in_one_split_and_each_split_has_all_tasks(self):
        source = ReasoningGymPrompts(config())
        asked = {split: [source.prompt(split, i) for i in range(source.num_prompts(split))] for split in SPLITS}
        assert {split: len(prompts) for split, prompts in asked.items()} == {"train": 80, "validation": 20, "demo": 10}
        assert len({prompt.text for prompts in asked.values() for prompt in prompts}) == 110
        for prompts in asked.values():
            assert [prompt.data_source for prompt in prompts[:4]] == ["chain_sum", "spell_backward"] * 2

    def test_more_problems_to_train_on_leave_the_other_splits(self):
        few, many = ReasoningGymPrompts(config()), ReasoningGymPrompts(config(num_train=60))
        for split in ("validation", "demo"):
            assert [few.prompt(split, i) for i in range(10)] == [many.prompt(split, i) for i in range(10)]

    def test_the_verifier_of_each_task_scores_its_answers(self):
        source = ReasoningGymPrompts(config())
        for index in range(10):
            prompt = source.prompt("demo", index)
            right = score(sample_of(prompt, source.demonstration("demo", index)))
            assert (right.reward, right.correct) == (1.0, True)
            wrong = score(sample_of(prompt, "## nothing of this kind"))
            assert wrong.reward < 1 and not wrong.correct
            assert score(sample_of(prompt, prompt.ground_truth)).reward == 0  # no marker
            assert score(sample_of(prompt, prompt.ground_truth), marker=None).correct

    def test_the_verifier_has_the_settings_of_its_task(self):
        """The words that it knows are those of the lengths that the settings allow."""
        source = ReasoningGymPrompts(
            config(
                tasks={"word_ladder": {"min_word_length": 3, "max_word_length": 3}},
                num_train=1,
                num_validation=2,
                num_demos=1,
            )
        )
        prompt = source.prompt("validation", 0)
        assert score(sample_of(prompt, source.demonstration("demo", 0))).reward == 0
        assert score(sample_of(prompt, f"## {prompt.ground_truth}")) == Score(1.0, True, {"verifier_failed": 0.0})

    def test_the_tokenizer_of_the_experiment_knows_its_tasks(self):
        chosen = compose_config(["experiment=reasoning_gym", "run_id=none"])
        source, tokenizer = ReasoningGymPrompts(chosen.data), build_tokenizer()
        for split in SPLITS:
            for index in range(source.num_prompts(split)):
                text = source.prompt(split, index).text
                ids = tokenizer(text)["input_ids"]
                assert len(ids) <= chosen.rollout.max_prompt_tokens and tokenizer.unk_token_id not in ids
                assert tokenizer.decode(ids, skip_special_tokens=True) == text

    def test_chats_and_suffixes(self):
        source = ReasoningGymPrompts(config(chat=True, suffix=" Answer after ##."))
        [message] = source.prompt("train", 0).messages
        assert message["role"] == "user" and message["content"].endswith("= Answer after ##.")

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"tasks": {"nope": {}}}, "data.tasks: reasoning-gym has no task nope; it has ab, "),
            ({"tasks": {"gcd": {"foo": 1}}}, r"data.tasks.gcd=\{'foo': 1\}: .*unexpected keyword argument 'foo'"),
            ({"tasks": {"gcd": {"min_numbers": 0}}}, r"data.tasks.gcd=.*: min_numbers must be at least 2"),
            ({"num_train": 500}, "data.tasks.chain_sum: has .* different problems with these settings, and .* = 515"),
        ],
    )
    def test_tasks_that_cannot_be_drawn_are_refused(self, values, message):
        with pytest.raises(ConfigError, match=f"^{message}") as refusal:
            ReasoningGymPrompts(config(**values))
        assert len(str(refusal.value).splitlines()) == 1
