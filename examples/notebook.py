"""A marimo notebook: edit the shardings of a program, and see its collectives and its page change. It needs no torch.

marimo run examples/notebook.py
"""

import marimo

__generated_with = "0.25.2"
app = marimo.App(width="medium", app_title="spmdir")


@app.cell
def _():
    import marimo as mo

    import spmdir
    from spmdir.core.errors import SpmdirError
    from spmdir.pictures.report_page import write_html
    from spmdir.pipeline.pipeline import as_pipeline

    return SpmdirError, as_pipeline, mo, spmdir, write_html


@app.cell
def _(mo):
    mo.md("""
    # From shardings to collectives

    The program below is a two-layer perceptron on a mesh of 2 × 4 ranks. Edit a `spmd.sharding`, for example
    `tp: S(1)` of `w1`, or the mesh, and leave the field. The notebook then runs the passes again.
    """)
    return


@app.cell
def _(mo):
    _text = (mo.notebook_dir() / "mlp.mlir").read_text()
    program = mo.ui.code_editor(value=_text, language="cpp", label="Program")
    passes = mo.ui.dropdown(
        {
            "shardings": "propagate",
            "reshards": "propagate,insert-reshard",
            "collectives": "propagate,insert-reshard,lower-reshard,fuse-collectives",
        },
        value="collectives",
        label="Show the program with its",
    )
    mo.vstack([program, passes])
    return passes, program


@app.cell
def _(SpmdirError, passes, program, spmdir):
    module, error = None, ""
    try:
        module = spmdir.run_passes(spmdir.parse(program.value, "program"), passes.value)
    except SpmdirError as _error:
        error = str(_error)
    return error, module


@app.cell
def _(error, mo, module, spmdir):
    result = spmdir.print_ir(module) if module is not None else error
    mo.md(f"```\n{result}\n```")
    return (result,)


@app.cell
def _(mo, module, spmdir):
    communication = str(spmdir.report.comm_report(module)) if module is not None else ""
    mo.md(f"The collectives, and their modelled times on 8 H100:\n\n```\n{communication}\n```")
    return (communication,)


@app.cell
def _(as_pipeline, mo, module, write_html):
    page = write_html(module, as_pipeline(None), "program") if module is not None else ""
    mo.iframe(page, height="900px")
    return (page,)


if __name__ == "__main__":
    app.run()
