"""How fast text is read: ours against the stock xDSL parser on the same module in generic form.

The module is a partitioned training step of a Llama, repeated as functions until there are 20,000 ops.
"""

from __future__ import annotations

import gc

from benchmarks.measure import Row, Stopwatch, cold, cold_in_both_orders, options, print_table

PIPELINE = "propagate,insert-reshard,lower-reshard,fuse-collectives"


def texts(count: int) -> tuple[str, str, int]:
    """The custom form and the generic form of the module, and how many ops it has."""
    import spmdir
    from benchmarks.programs import Config, shardings, trace
    from spmdir.dialects import ir

    config = Config(layers=2)
    given, residual = shardings(config, "tp_fsdp")
    graph, *_ = trace(config, residual)
    module = spmdir.run_passes(spmdir.import_fx(graph, spmdir.Mesh({"data": 2, "model": 4}), given), PIPELINE)
    head, _, function = ir.print_ir(module).partition("\n\n")
    repeats = -(-count // len(ir.main_function(module).body.block.ops))
    functions = (function.replace("@main", f"@main_{index}", 1) for index in range(repeats))
    text = "\n\n".join([head, *functions])
    many = ir.parse(text)
    return text, ir.print_ir(many, generic=True), sum(1 for _ in many.walk())


def ours(text: str) -> dict[str, float]:
    """Seconds to parse the custom form, and to verify the module."""
    from spmdir.dialects import ir

    watch = Stopwatch()
    module = ir.parse(text, verify_module=False)
    watch.lap("parse")
    ir.verify(module)
    watch.lap("verify")
    ir.print_ir(module)
    watch.lap("print")
    return watch.seconds


def stock(text: str) -> dict[str, float]:
    """Seconds of xDSL's own parser, printer and verifier on the generic form; no garbage collection, as in ours."""
    from io import StringIO

    from xdsl.parser import Parser
    from xdsl.printer import Printer

    from spmdir.dialects import ir

    gc.disable()
    watch = Stopwatch()
    module = Parser(ir.context(), text).parse_module()
    watch.lap("parse")
    module.verify()
    watch.lap("verify")
    Printer(stream=StringIO(), print_generic_format=True).print_op(module)
    watch.lap("print")
    return watch.seconds


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--ops", type=int, default=20_000)
    custom, generic, ops = cold(texts, parser.parse_args().ops)
    mine, theirs = (
        min(runs, key=lambda seconds: seconds["parse"])
        for runs in cold_in_both_orders((ours, custom), (stock, generic))
    )
    rows = [
        Row(
            f"{stage}: xDSL / spmdir",
            theirs[stage] / mine[stage],
            5.0 if stage == "parse" else None,
            at_least=True,
            detail=f"{theirs[stage]:.2f} / {mine[stage]:.2f} s, {mine[stage] / ops * 1e6:.0f} µs an op",
        )
        for stage in mine
    ]
    sizes = f"{len(custom) / 1e6:.1f} MB against {len(generic) / 1e6:.1f} MB"
    print_table(f"{ops} ops as text, {sizes}", rows)


if __name__ == "__main__":
    main()
