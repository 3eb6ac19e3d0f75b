"""The language server: our answers in the types of the protocol. Needs pygls, the extra `lsp`."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from spmdir.core.errors import SpmdirError
from spmdir.language_server.completions import MOST, completions
from spmdir.language_server.declared_names import shard_hints, symbols
from spmdir.language_server.document import Document, read_document
from spmdir.language_server.formatting import edit_of, formatted
from spmdir.language_server.line_costs import LineCost, line_costs
from spmdir.language_server.meanings import meaning
from spmdir.language_server.renaming import named_at, rename, rule_places
from spmdir.language_server.scan import TextSpan
from spmdir.pipeline.pipeline import Pipeline

DELAY = 0.15
"""Seconds without a keystroke after which a text is read again."""

_KINDS = {
    "op": lsp.CompletionItemKind.Function,
    "value": lsp.CompletionItemKind.Variable,
    "symbol": lsp.CompletionItemKind.Reference,
    "axis": lsp.CompletionItemKind.EnumMember,
    "placement": lsp.CompletionItemKind.Class,
    "argument": lsp.CompletionItemKind.Property,
    "type": lsp.CompletionItemKind.TypeParameter,
    "keyword": lsp.CompletionItemKind.Keyword,
    "function": lsp.CompletionItemKind.Function,
}
_SYMBOLS = {"mesh": lsp.SymbolKind.Namespace, "function": lsp.SymbolKind.Function, "rule": lsp.SymbolKind.Function}

Answer = TypeVar("Answer")


@attrs.define(eq=False)
class Texts:
    """The open texts as they were read last, and the pipeline that they are read with."""

    server: LanguageServer
    pipeline: Pipeline
    read: dict[str, Document] = attrs.field(factory=dict)
    costs: dict[str, tuple[Document, list[LineCost]]] = attrs.field(factory=dict)
    timers: dict[str, threading.Timer] = attrs.field(factory=dict)
    lock: threading.RLock = attrs.field(factory=threading.RLock)

    def document(self, uri: str) -> Document:
        """Return the text of `uri` as it is; what an equal text has been read as is not read again.

        Raises:
            SpmdirError: it is not open, and cannot be read.
        """
        try:
            text = self.server.workspace.get_text_document(uri).source
        except (OSError, ValueError) as error:  # it is not open, and no text that can be read
            raise SpmdirError(f"'{uri}' cannot be read: {error}") from None
        with self.lock:
            known = self.read.get(uri)
            if known is None or known.text != text or known.pipeline is not self.pipeline:
                known = self.read[uri] = read_document(text, to_fs_path(uri) or uri, self.pipeline, known)
            return known

    def later(self, uri: str) -> None:
        """Publish the mistakes of a text once nothing has been typed for `DELAY`."""
        self.forget_timer(uri)
        timer = threading.Timer(DELAY, lambda: guarded(self.server, lambda: self.publish(uri), None))
        timer.daemon = True
        self.timers[uri] = timer
        timer.start()

    def forget_timer(self, uri: str) -> None:
        if (timer := self.timers.pop(uri, None)) is not None:
            timer.cancel()

    def publish(self, uri: str) -> None:
        """Tell the editor what is wrong with a text."""
        opened = self.server.workspace.get_text_document(uri)
        version, document = opened.version, self.document(uri)
        found = [
            lsp.Diagnostic(self.range(document, one.span), one.message, lsp.DiagnosticSeverity.Error, source="spmdir")
            for one in document.mistakes
        ]
        self.server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, version))

    def line_costs(self, uri: str) -> tuple[Document, list[LineCost]]:
        """Return the costs of the lines of a text, computed once for each text."""
        document = self.document(uri)
        known = self.costs.get(uri)
        if known is None or known[0] is not document:
            known = self.costs[uri] = (document, line_costs(document))
        return known

    def asked(self, params: Any) -> tuple[Document, int]:
        """Return the text and the offset in it that a request is about; raises as `document` does."""
        document = self.document(params.text_document.uri)
        return document, self.offset(document, params.position)

    def offset(self, document: Document, position: lsp.Position) -> int:
        """Return the offset of a position that the editor names."""
        start, end = (document.scan.offset(position.line, column) for column in (0, position.character))
        if document.text[start:end].isascii():  # columns are characters then, however long the line is
            return end
        line = f"{document.text[start:end]}\n"
        codec = self.server.workspace.position_codec
        place = codec.position_from_client_units([line], lsp.Position(0, position.character))
        return document.scan.offset(position.line, place.character)

    def range(self, document: Document, span: TextSpan) -> lsp.Range:
        """Return a piece of a text as the editor names it."""
        units = self.server.workspace.position_codec.client_num_units
        ends = []
        for offset in (span.start, span.end):
            line = document.scan.line(offset)
            before = document.text[document.scan.lines[line] : offset]
            ends.append(lsp.Position(line, len(before) if before.isascii() else units(before)))
        return lsp.Range(ends[0], ends[1])


def guarded(server: LanguageServer, answer: Callable[[], Answer], otherwise: Answer) -> Answer:
    """Return what `answer` gives; what it raises is shown or logged as a message, and `otherwise` the answer."""
    try:
        return answer()
    except SpmdirError as error:
        server.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Error, str(error)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # xDSL has errors that are not Exceptions
        logging.getLogger(__name__).exception("internal error")
        message = f"internal error, please report: {type(error).__name__}: {error}"
        server.window_log_message(lsp.LogMessageParams(lsp.MessageType.Error, message))
    return otherwise


def answering(server: LanguageServer) -> Callable[..., Any]:
    """Return a decorator for what answers a request: `answers(feature, otherwise, options=None, threaded=False)`."""

    def answers(feature: str, otherwise: Any, options: Any = None, threaded: bool = False) -> Callable[..., Any]:
        def registered(answer: Callable[[Any], Any]) -> Callable[[Any], Any]:
            @functools.wraps(answer)
            def answered(params: Any) -> Any:
                return guarded(server, lambda: answer(params), otherwise)

            return server.feature(feature, options)(server.thread()(answered) if threaded else answered)

        return registered

    return answers


def language_server(pipeline: Pipeline, version: str) -> LanguageServer:
    """Return the server; `start_io` runs it over stdin and stdout."""
    # Whole texts, since pygls applies edits to lines that also end where Python's do, as at a form feed.
    server = LanguageServer("spmd-lsp", version, text_document_sync_kind=lsp.TextDocumentSyncKind.Full)
    texts = Texts(server, pipeline)
    _follow_texts(server, texts)
    _answer(server, texts)
    _edit(server, texts)
    return server


def _follow_texts(server: LanguageServer, texts: Texts) -> None:
    @server.feature(lsp.INITIALIZE)
    def initialise(params: lsp.InitializeParams) -> None:
        given: Any = params.initialization_options or {}
        read = given.get if isinstance(given, dict) else lambda _: None
        changes = {"topology": read("topology"), "costs": read("costs"), "plugins": read("plugins")}
        changes = {name: value for name, value in changes.items() if value}
        if changes:
            evolved = lambda: attrs.evolve(texts.pipeline, **changes)  # noqa: E731
            texts.pipeline = guarded(server, evolved, texts.pipeline)

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        uri = params.text_document.uri
        guarded(server, lambda: texts.publish(uri), None)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        texts.later(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        texts.forget_timer(uri)
        texts.read.pop(uri, None)
        texts.costs.pop(uri, None)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))


def _answer(server: LanguageServer, texts: Texts) -> None:
    answers = answering(server)

    @answers(lsp.TEXT_DOCUMENT_HOVER, None)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        document, offset = texts.asked(params)
        found = meaning(document, offset)
        if found is None:
            return None
        content = lsp.MarkupContent(lsp.MarkupKind.Markdown, found[0])
        return lsp.Hover(content, texts.range(document, found[1]))

    @answers(lsp.TEXT_DOCUMENT_DEFINITION, [])
    def definition(params: lsp.DefinitionParams) -> list[lsp.Location]:
        document, offset = texts.asked(params)
        if document.language == "program" and (places := rule_places(document, offset)):
            starts = [lsp.Position(place.line - 1, 0) for place in places]
            files = [from_fs_path(place.file) or place.file for place in places]
            return [lsp.Location(file, lsp.Range(at, at)) for file, at in zip(files, starts, strict=True)]
        named = named_at(document, offset)
        places = named.places[:1] if named is not None else ()
        return [lsp.Location(params.text_document.uri, texts.range(document, place)) for place in places]

    @answers(lsp.TEXT_DOCUMENT_REFERENCES, [])
    def references(params: lsp.ReferenceParams) -> list[lsp.Location]:
        document, offset = texts.asked(params)
        named = named_at(document, offset)
        places: Sequence[TextSpan] = named.places if named is not None else ()
        shown = places if params.context.include_declaration else places[1:]
        return [lsp.Location(params.text_document.uri, texts.range(document, place)) for place in shown]

    @answers(lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT, [])
    def highlight(params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
        document, offset = texts.asked(params)
        named = named_at(document, offset)
        places: Sequence[TextSpan] = named.places if named is not None else ()
        return [lsp.DocumentHighlight(texts.range(document, place)) for place in places]

    @answers(
        lsp.TEXT_DOCUMENT_COMPLETION,
        lsp.CompletionList(is_incomplete=False, items=[]),
        lsp.CompletionOptions(trigger_characters=["%", "@", ".", "<", "[", ":", ",", "{", "("]),
    )
    def complete(params: lsp.CompletionParams) -> lsp.CompletionList:
        document, offset = texts.asked(params)
        span, found = completions(document, offset)
        place = texts.range(document, span)
        items = [
            lsp.CompletionItem(
                one.text, kind=_KINDS[one.sort], detail=one.detail or None, text_edit=lsp.TextEdit(place, one.text)
            )
            for one in found
        ]
        return lsp.CompletionList(is_incomplete=len(items) >= MOST, items=items)

    @answers(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL, [])
    def outline(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        document = texts.document(params.text_document.uri)
        found = []
        for one in symbols(document):
            whole, name = (texts.range(document, span) for span in (one.whole, one.span))
            found.append(lsp.DocumentSymbol(one.name, _SYMBOLS[one.sort], whole, name))
        return found

    @answers(lsp.TEXT_DOCUMENT_INLAY_HINT, [])
    def hints(params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        document = texts.document(params.text_document.uri)
        first, last = (texts.offset(document, at) for at in (params.range.start, params.range.end))
        found = shard_hints(document, first, last)
        starts = [(texts.range(document, TextSpan(at, at)).start, text) for at, text in found]
        return [lsp.InlayHint(start, text, padding_left=True) for start, text in starts]

    @answers(lsp.TEXT_DOCUMENT_CODE_LENS, [], threaded=True)
    def lenses(params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        document, costs = texts.line_costs(params.text_document.uri)
        return [lsp.CodeLens(texts.range(document, cost.span), lsp.Command(cost.text, "")) for cost in costs]


def _edit(server: LanguageServer, texts: Texts) -> None:
    answers = answering(server)

    @answers(lsp.TEXT_DOCUMENT_FORMATTING, [])
    def format_text(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
        document = texts.document(params.text_document.uri)
        edit = edit_of(document.text, formatted(document))
        return [] if edit is None else [lsp.TextEdit(texts.range(document, edit[0]), edit[1])]

    @answers(lsp.TEXT_DOCUMENT_PREPARE_RENAME, None)
    def prepare(params: lsp.PrepareRenameParams) -> lsp.Range | None:
        document, offset = texts.asked(params)
        named = named_at(document, offset)
        place = next((one for one in named.places if offset in one), None) if named is not None else None
        return texts.range(document, place) if place is not None else None

    @answers(lsp.TEXT_DOCUMENT_RENAME, None, lsp.RenameOptions(prepare_provider=True))
    def rename_all(params: lsp.RenameParams) -> lsp.WorkspaceEdit | None:
        document, offset = texts.asked(params)
        changes = [
            lsp.TextEdit(texts.range(document, span), new) for span, new in rename(document, offset, params.new_name)
        ]
        return lsp.WorkspaceEdit(changes={params.text_document.uri: changes})
