"""Advantages, losses, KL and filters as pure functions of tensors.

An iteration uses them like this::

    advantages, returns = compute_advantages(AdvantageInputs(rewards, mask, group_ids), config)
    for each mini-batch:
        counts = count_tokens(mask, row_capacity, over_rows(all_reduce))
        weights = token_weights(mask, config.aggregation, counts)
        selected = select_tokens(old_log_probs, advantages, mask, row_seeds, config, all_reduce)
        for each micro-batch, with its slices of all of these:
            loss, metrics = policy_objective(LossInputs(...), weights, config)
            loss.backward()
"""
