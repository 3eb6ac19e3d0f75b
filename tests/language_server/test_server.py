"""An editor and the server, as processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from tests.language_server.texts import MLP


async def session(uri: str) -> dict[str, Any]:
    """Return what an editor is told that opens the example, breaks it, asks, and renames."""
    client, published, said = LanguageClient("editor", "1"), asyncio.Queue[Any](), []
    client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: published.put_nowait(params))
    client.feature(lsp.WINDOW_SHOW_MESSAGE)(lambda params: said.append(params.message))
    await client.start_io(sys.executable, "-m", "spmdir.tools.spmd_lsp")
    started = await client.initialize_async(
        lsp.InitializeParams(lsp.ClientCapabilities(), initialization_options={"topology": "nowhere"})
    )
    client.initialized(lsp.InitializedParams())
    text = "// 𝕩 is two units of UTF-16; \u2028, \f and \x85 end no line\n" + MLP
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(lsp.TextDocumentItem(uri, "spmdir", 1, text)))
    told: dict[str, Any] = {"capabilities": started.capabilities}
    told["opened"] = (await asyncio.wait_for(published.get(), 20)).diagnostics
    line = next(number for number, one in enumerate(text.split("\n")) if "aten.gelu" in one)
    for version, name in enumerate(("gel", "gell"), 2):
        change = lsp.TextDocumentContentChangeWholeDocument(text.replace("aten.gelu", f"aten.{name}"))
        place = lsp.VersionedTextDocumentIdentifier(version, uri)
        client.text_document_did_change(lsp.DidChangeTextDocumentParams(place, [change]))
    told["broken"] = (await asyncio.wait_for(published.get(), 20)).diagnostics
    document, x = lsp.TextDocumentIdentifier(uri), lsp.Position(line - 4, 16)
    told["hover"] = await client.text_document_hover_async(lsp.HoverParams(document, x))
    renamed = await client.text_document_rename_async(lsp.RenameParams(document, x, "input"))
    told["renamed"] = renamed.changes[uri]
    taken = lsp.RenameParams(document, x, "w1")
    told["taken"] = await client.text_document_rename_async(taken)
    unread = lsp.TextDocumentIdentifier(f"{uri}.not_there")
    told["unread"] = await client.text_document_hover_async(lsp.HoverParams(unread, x))
    told["said"] = said
    await client.shutdown_async(None)
    client.exit(None)
    await client.stop()
    return told


def test_an_editor_is_told_of_mistakes_meanings_and_names(tmp_path: Path) -> None:
    told = asyncio.run(session((tmp_path / "in.mlir").as_uri()))
    assert told["opened"] == ()
    assert told["capabilities"].text_document_sync.change == lsp.TextDocumentSyncKind.Full
    (wrong,) = told["broken"]
    assert "'aten.gell': is not an op of torch" in wrong.message and wrong.range.start.character == 2
    assert "%x : tensor<16x1024xf32> <dp: S(0)>" in told["hover"].contents.value
    assert [edit.new_text for edit in told["renamed"]] == ["input", "input"]
    assert told["taken"] is None
    assert any("'w1' is already the name of another value" in message for message in told["said"])
    assert told["unread"] is None
    assert any("not_there' cannot be read" in message for message in told["said"])
    assert any("nowhere" in message for message in told["said"])
