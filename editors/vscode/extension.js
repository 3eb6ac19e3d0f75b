"use strict";

const { workspace } = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

/** Starts `spmd-lsp`; where a workspace is not trusted, texts are only coloured. */
function activate(context) {
  const start = () => {
    const settings = workspace.getConfiguration("spmdir");
    client = new LanguageClient(
      "spmdir",
      "spmdir",
      { command: settings.get("server.command"), args: [] },
      {
        documentSelector: ["spmdir", "spmdir-rules", "spmdir-rewrites"].map((language) => ({ language })),
        initializationOptions: {
          plugins: settings.get("plugins"),
          topology: settings.get("topology"),
          costs: settings.get("costs"),
        },
      },
    );
    return client.start();
  };
  if (workspace.isTrusted) return start();
  context.subscriptions.push(workspace.onDidGrantWorkspaceTrust(start));
}

function deactivate() {
  return client && client.stop();
}

module.exports = { activate, deactivate };
