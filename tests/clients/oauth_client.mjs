// The official TypeScript client with its own OAuth code: authorizes, lists and calls.
// Arguments: the package's folder, and the URL of the server.
import { pathToFileURL } from "node:url";

const [folder, url] = process.argv.slice(2);
const sdk = await import(pathToFileURL(`${folder}/dist/index.mjs`).href);
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = sdk;

let tokens, client, verifier, cameBack;
const provider = {
    redirectUrl: "http://localhost:1/callback",
    clientMetadata: {
        client_name: "test",
        redirect_uris: ["http://localhost:1/callback"],
        grant_types: ["authorization_code", "refresh_token"],
        response_types: ["code"],
        token_endpoint_auth_method: "none",
    },
    state: () => "state-1",
    clientInformation: () => client,
    saveClientInformation: (own) => { client = own; },
    tokens: () => tokens,
    saveTokens: (own) => { tokens = own; },
    codeVerifier: () => verifier,
    saveCodeVerifier: (own) => { verifier = own; },
    async redirectToAuthorization(address) {
        const answer = await fetch(address, { redirect: "manual" });
        cameBack = new URL(answer.headers.get("location")).searchParams;
    },
};

// As an application does: connects, and again after each time that the user has approved.
async function connected() {
    for (let visits = 0; ; visits += 1) {
        const transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider });
        const own = new Client({ name: "test", version: "1.0.0" });
        try {
            await own.connect(transport);
            return own;
        } catch (error) {
            if (!(error instanceof UnauthorizedError) || visits === 3) throw error;
            await transport.finishAuth(cameBack);
        }
    }
}

const own = await connected();
const { tools } = await own.listTools();
const result = await own.callTool({ name: "calculator", arguments: { expression: "6*7" } });
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), text: result.content[0].text }));
await own.close();
process.exit(0);
