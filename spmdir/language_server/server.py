"""The language server: converts results to the types of the protocol. Requires pygls, the extra `lsp`."""

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
from spmdir.language_server.completions import MAX_COMPLETIONS, completions
from spmdir.language_server.declared_names import shard_hints, symbols
from spmdir.language_server.document import Document, read_document
from spmdir.language_server.formatting import edit_of, formatted
from spmdir.language_server.hover_texts import meaning
from spmdir.language_server.line_costs import LineCost, line_costs
from spmdir.language_server.renaming import name_at, rename, rule_places
from spmdir.language_server.scan import TextSpan
from spmdir.pipeline.pipeline import Pipeline

DELAY = 0.15
"""Seconds after the last keystroke until a text is parsed again."""

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
class OpenDocuments:
    """The open texts in their last parsed form, and the pipeline that parses them."""

    server: LanguageServer
    pipeline: Pipeline
    documents: dict[str, Document] = attrs.field(factory=dict)
    costs: dict[str, tuple[Document, list[LineCost]]] = attrs.field(factory=dict)
    timers: dict[str, threading.Timer] = attrs.field(factory=dict)
    lock: threading.RLock = attrs.field(factory=threading.RLock)

    def document(self, uri: str) -> Document:
        """Return the parsed text of `uri`. An unchanged text is not parsed again.

        Raises:
            SpmdirError: the text is not open, and the file cannot be read.
        """
        try:
            text = self.server.workspace.get_text_document(uri).source
        except (OSError, ValueError) as error:  # not open, and not a readable text file
            raise SpmdirError(f"'{uri}' cannot be read: {error}; expected an open text or a readable file") from None
        with self.lock:
            document = self.documents.get(uri)
            if document is None or document.text != text or document.pipeline is not self.pipeline:
                document = self.documents[uri] = read_document(text, to_fs_path(uri) or uri, self.pipeline, document)
            return document

    def schedule_publish(self, uri: str) -> None:
        """Publish the errors of a text after `DELAY` seconds without a keystroke."""
        self.cancel_timer(uri)
        timer = threading.Timer(DELAY, lambda: run_guarded(self.server, lambda: self.publish(uri), None))
        timer.daemon = True
        self.timers[uri] = timer
        timer.start()

    def cancel_timer(self, uri: str) -> None:
        """Cancel the scheduled publication of the errors of a text."""
        timer = self.timers.pop(uri, None)
        if timer is not None:
            timer.cancel()

    def publish(self, uri: str) -> None:
        """Publish the errors of a text to the editor."""
        text_document = self.server.workspace.get_text_document(uri)
        version, document = text_document.version, self.document(uri)
        diagnostics = []
        for mistake in document.mistakes:
            span, severity = self.range(document, mistake.span), lsp.DiagnosticSeverity.Error
            diagnostics.append(lsp.Diagnostic(span, mistake.message, severity, source="spmdir"))
        self.server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, diagnostics, version))

    def line_costs(self, uri: str) -> tuple[Document, list[LineCost]]:
        """Return a text and the costs of its lines, computed once for each version."""
        document = self.document(uri)
        cached = self.costs.get(uri)
        if cached is None or cached[0] is not document:
            cached = self.costs[uri] = (document, line_costs(document))
        return cached

    def document_and_offset(self, params: Any) -> tuple[Document, int]:
        """Return the text and the offset of a request; raises as `document` does."""
        document = self.document(params.text_document.uri)
        return document, self.offset(document, params.position)

    def offset(self, document: Document, position: lsp.Position) -> int:
        """Return the offset of a position of the protocol."""
        start, end = (document.scan.offset(position.line, column) for column in (0, position.character))
        if document.text[start:end].isascii():  # then columns are characters
            return end
        line = f"{document.text[start:end]}\n"
        codec = self.server.workspace.position_codec
        place = codec.position_from_client_units([line], lsp.Position(0, position.character))
        return document.scan.offset(position.line, place.character)

    def range(self, document: Document, span: TextSpan) -> lsp.Range:
        """Return the range of a span, in the units of the protocol."""
        units = self.server.workspace.position_codec.client_num_units
        ends = []
        for offset in (span.start, span.end):
            line = document.scan.line(offset)
            text_before = document.text[document.scan.lines[line] : offset]
            ends.append(lsp.Position(line, len(text_before) if text_before.isascii() else units(text_before)))
        return lsp.Range(ends[0], ends[1])


def run_guarded(server: LanguageServer, compute: Callable[[], Answer], fallback: Answer) -> Answer:
    """Return `compute()`. If it raises an exception, return `fallback`.

    The editor shows a SpmdirError. Any other exception is logged as an internal error. Ctrl-C and exit pass through.
    """
    try:
        return compute()
    except SpmdirError as error:
        server.window_show_message(lsp.ShowMessageParams(lsp.MessageType.Error, str(error)))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # xDSL has errors that are not Exceptions
        logging.getLogger(__name__).exception("internal error")
        message = f"internal error, please report: {type(error).__name__}: {error}"
        server.window_log_message(lsp.LogMessageParams(lsp.MessageType.Error, message))
    return fallback


def request_handlers(server: LanguageServer) -> Callable[..., Any]:
    """Return a decorator that registers a request handler, as in `@answers(lsp.TEXT_DOCUMENT_HOVER, None)`.

    The arguments of the decorator are the feature of the protocol; the answer if the handler raises; the options of the
    feature; and whether the handler runs in a thread, for slow answers.
    """

    def answers(feature: str, fallback: Any, options: Any = None, threaded: bool = False) -> Callable[..., Any]:
        """Return the decorator for one feature."""

        def register(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
            """Register a handler, and return it with its exceptions caught."""

            @functools.wraps(handler)
            def guarded_handler(params: Any) -> Any:
                return run_guarded(server, lambda: handler(params), fallback)

            return server.feature(feature, options)(server.thread()(guarded_handler) if threaded else guarded_handler)

        return register

    return answers


def language_server(pipeline: Pipeline, version: str) -> LanguageServer:
    """Return the server; `start_io` runs it over stdin and stdout."""
    # Full sync: pygls would apply edits to lines as Python splits them, for example at a form feed.
    server = LanguageServer("spmd-lsp", version, text_document_sync_kind=lsp.TextDocumentSyncKind.Full)
    texts = OpenDocuments(server, pipeline)
    _register_text_events(server, texts)
    _register_queries(server, texts)
    _register_edits(server, texts)
    return server


def _register_text_events(server: LanguageServer, texts: OpenDocuments) -> None:
    """Register the handlers that follow the open texts: initialisation, opening, changes and closing."""

    @server.feature(lsp.INITIALIZE)
    def initialise(params: lsp.InitializeParams) -> None:
        """Take the machine, costs and plug-ins from the options of the editor."""
        options: Any = params.initialization_options or {}
        read_option = options.get if isinstance(options, dict) else lambda _: None
        values = {name: read_option(name) for name in ("topology", "costs", "plugins")}
        changes = {name: value for name, value in values.items() if value}
        if changes:
            make_pipeline = lambda: attrs.evolve(texts.pipeline, **changes)  # noqa: E731
            texts.pipeline = run_guarded(server, make_pipeline, texts.pipeline)

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        uri = params.text_document.uri
        run_guarded(server, lambda: texts.publish(uri), None)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        texts.schedule_publish(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        """Forget a text, and clear its errors in the editor."""
        uri = params.text_document.uri
        texts.cancel_timer(uri)
        texts.documents.pop(uri, None)
        texts.costs.pop(uri, None)
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))


def _register_queries(server: LanguageServer, texts: OpenDocuments) -> None:
    """Register the handlers of requests that read a text, such as hovers and completions."""
    answers = request_handlers(server)

    @answers(lsp.TEXT_DOCUMENT_HOVER, None)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        """Return the meaning of the word under the cursor."""
        document, offset = texts.document_and_offset(params)
        explained = meaning(document, offset)
        if explained is None:
            return None
        content = lsp.MarkupContent(lsp.MarkupKind.Markdown, explained[0])
        return lsp.Hover(content, texts.range(document, explained[1]))

    @answers(lsp.TEXT_DOCUMENT_DEFINITION, [])
    def definition(params: lsp.DefinitionParams) -> list[lsp.Location]:
        """Return the rules of an op, or the first place of a name, which defines it."""
        document, offset = texts.document_and_offset(params)
        rule_locations = rule_places(document, offset) if document.language == "program" else []
        if rule_locations:
            locations = []
            for place in rule_locations:
                start = lsp.Position(place.line - 1, 0)
                locations.append(lsp.Location(from_fs_path(place.file) or place.file, lsp.Range(start, start)))
            return locations
        named = name_at(document, offset)
        places = named.places[:1] if named is not None else ()
        return [lsp.Location(params.text_document.uri, texts.range(document, place)) for place in places]

    @answers(lsp.TEXT_DOCUMENT_REFERENCES, [])
    def references(params: lsp.ReferenceParams) -> list[lsp.Location]:
        """Return the places of a name, with or without its definition."""
        document, offset = texts.document_and_offset(params)
        named = name_at(document, offset)
        places: Sequence[TextSpan] = named.places if named is not None else ()
        shown = places if params.context.include_declaration else places[1:]
        return [lsp.Location(params.text_document.uri, texts.range(document, place)) for place in shown]

    @answers(lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT, [])
    def highlight(params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
        document, offset = texts.document_and_offset(params)
        named = name_at(document, offset)
        places: Sequence[TextSpan] = named.places if named is not None else ()
        return [lsp.DocumentHighlight(texts.range(document, place)) for place in places]

    @answers(
        lsp.TEXT_DOCUMENT_COMPLETION,
        lsp.CompletionList(is_incomplete=False, items=[]),
        lsp.CompletionOptions(trigger_characters=["%", "@", ".", "<", "[", ":", ",", "{", "("]),
    )
    def complete(params: lsp.CompletionParams) -> lsp.CompletionList:
        """Return the completions of the word before the cursor."""
        document, offset = texts.document_and_offset(params)
        span, candidates = completions(document, offset)
        place = texts.range(document, span)
        items = [
            lsp.CompletionItem(
                completion.text,
                kind=_KINDS[completion.kind],
                detail=completion.detail or None,
                text_edit=lsp.TextEdit(place, completion.text),
            )
            for completion in candidates
        ]
        return lsp.CompletionList(is_incomplete=len(items) >= MAX_COMPLETIONS, items=items)

    @answers(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL, [])
    def outline(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        """Return the meshes, functions and rules that a text declares."""
        document = texts.document(params.text_document.uri)
        outline_entries = []
        for declared in symbols(document):
            whole, name = (texts.range(document, span) for span in (declared.full_span, declared.name_span))
            outline_entries.append(lsp.DocumentSymbol(declared.name, _SYMBOLS[declared.kind], whole, name))
        return outline_entries

    @answers(lsp.TEXT_DOCUMENT_INLAY_HINT, [])
    def hints(params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        """Return the local types to show after the definitions of values in a range."""
        document = texts.document(params.text_document.uri)
        start, end = (texts.offset(document, position) for position in (params.range.start, params.range.end))
        inlay_hints = []
        for offset, text in shard_hints(document, start, end):
            position = texts.range(document, TextSpan(offset, offset)).start
            inlay_hints.append(lsp.InlayHint(position, text, padding_left=True))
        return inlay_hints

    @answers(lsp.TEXT_DOCUMENT_CODE_LENS, [], threaded=True)
    def lenses(params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        document, costs = texts.line_costs(params.text_document.uri)
        return [lsp.CodeLens(texts.range(document, cost.span), lsp.Command(cost.text, "")) for cost in costs]


def _register_edits(server: LanguageServer, texts: OpenDocuments) -> None:
    """Register the handlers of requests that change a text: formatting and renaming."""
    answers = request_handlers(server)

    @answers(lsp.TEXT_DOCUMENT_FORMATTING, [])
    def format_text(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
        document = texts.document(params.text_document.uri)
        edit = edit_of(document.text, formatted(document))
        return [] if edit is None else [lsp.TextEdit(texts.range(document, edit[0]), edit[1])]

    @answers(lsp.TEXT_DOCUMENT_PREPARE_RENAME, None)
    def prepare(params: lsp.PrepareRenameParams) -> lsp.Range | None:
        document, offset = texts.document_and_offset(params)
        named = name_at(document, offset)
        place = next((span for span in named.places if offset in span), None) if named is not None else None
        return texts.range(document, place) if place is not None else None

    @answers(lsp.TEXT_DOCUMENT_RENAME, None, lsp.RenameOptions(prepare_provider=True))
    def rename_all(params: lsp.RenameParams) -> lsp.WorkspaceEdit | None:
        document, offset = texts.document_and_offset(params)
        edits = rename(document, offset, params.new_name)
        changes = [lsp.TextEdit(texts.range(document, span), new) for span, new in edits]
        return lsp.WorkspaceEdit(changes={params.text_document.uri: changes})
