import torch

from spmdir.runtime.rank_calls import owned


def test_gradients_that_are_separate_parts_of_one_message_are_not_copied():
    message = torch.arange(12.0)
    first, second = owned([message[:4], message[4:].reshape(2, 4)], [])
    assert first.data_ptr() == message.data_ptr() and second.data_ptr() == message[4:].data_ptr()


def test_gradients_that_share_elements_are_copied():
    held, message, row = torch.ones(3), torch.arange(12.0), torch.ones(1, 4)
    results = [message[:4], message[3:6], message.view(3, 4)[:, 1], row.expand(3, 4), held[1:], row]
    found = owned(results, [held])
    for result, expected in zip(found, results, strict=True):
        assert torch.equal(result, expected)
    for index, result in enumerate(found):
        before = [other.clone() for other in (*found[:index], *found[index + 1 :], held)]
        result.fill_(7)
        assert all(map(torch.equal, (*found[:index], *found[index + 1 :], held), before))
