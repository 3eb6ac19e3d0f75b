import torch

from spmdir.rules.rule_set import default


def _functional(tag: torch.Tag) -> dict[str, torch._ops.OpOverload]:
    packets = (getattr(torch.ops.aten, name) for name in dir(torch.ops.aten))
    overloads = (
        getattr(packet, name)
        for packet in packets
        if isinstance(packet, torch._ops.OpOverloadPacket)
        for name in packet.overloads()
    )
    tagged = {str(op).removesuffix(".default"): op for op in overloads if tag in op.tags}
    return {name: op for name, op in tagged.items() if not op._schema.is_mutable}


def _gives_tensors(op: torch._ops.OpOverload) -> bool:
    return any("Tensor" in str(returned.type) for returned in op._schema.returns)


def test_every_core_op_has_a_rule():
    core = _functional(torch.Tag.core)
    assert len(core) > 150
    assert [name for name, op in core.items() if _gives_tensors(op) and default().lookup(name) is None] == []


def test_core_ops_that_give_no_tensor_need_none():
    # Sizes and strides are the importer's; a number read out of a tensor is rejected.
    numbers = {name for name, op in _functional(torch.Tag.core).items() if not _gives_tensors(op)}
    # torch lists this one only once something in the process has asked for it.
    assert numbers - {"aten.sym_is_contiguous"} == {
        "aten._local_scalar_dense", "aten.sym_numel", "aten.sym_size.int", "aten.sym_storage_offset",
        "aten.sym_stride.int",
    }  # fmt: skip


def test_every_pointwise_op_has_a_rule():
    names = _functional(torch.Tag.pointwise)
    assert len(names) > 200
    each = {name: op for name, op in names.items() if "_foreach_" not in name and _gives_tensors(op)}
    assert [name for name in each if default().lookup(name) is None] == []
