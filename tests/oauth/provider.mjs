// An authorization server (oidc-provider) and a protected resource, on one port of this machine.
// `node provider.mjs` with SETTINGS, a JSON object: ttl (seconds of an access token), rotate, jwks
// (of the service that signs). GET /ledger tells what the token endpoint has done.
// A person is whoever the request to the login page names in its header x-user.

import http from "node:http";

import Provider, { errors } from "oidc-provider";

const settings = { ttl: 3600, rotate: true, jwks: { keys: [] }, ...JSON.parse(process.env.SETTINGS ?? "{}") };
const CLIENT_DOCUMENT = "https://client.example/oauth/toolkeep.json";
const SCOPES = "files:read files:write";
const ledger = { grants: [], at: [], refused: [], revoked: 0, registered: [] };

const server = http.createServer();
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${server.address().port}`;
const resource = `${origin}/mcp`;

const document = {
  client_id: CLIENT_DOCUMENT,
  client_name: "toolkeep",
  redirect_uris: ["http://127.0.0.1:7777/callback"],
  grant_types: ["authorization_code", "refresh_token"],
  response_types: ["code"],
  token_endpoint_auth_method: "none",
  application_type: "native",
};

const provider = new Provider(origin, {
  clients: [
    {
      client_id: "configured",
      client_secret: "configured:secret/+",
      redirect_uris: ["http://127.0.0.1:7777/callback"],
      grant_types: ["authorization_code", "refresh_token"],
      application_type: "native",
    },
    {
      client_id: "service",
      client_secret: "service-secret",
      redirect_uris: [],
      response_types: [],
      grant_types: ["client_credentials"],
      token_endpoint_auth_method: "client_secret_post",
    },
    {
      client_id: "signer",
      redirect_uris: [],
      response_types: [],
      grant_types: ["client_credentials"],
      token_endpoint_auth_method: "private_key_jwt",
      token_endpoint_auth_signing_alg: "ES256",
      jwks: settings.jwks,
    },
  ].filter((client) => client.client_id !== "signer" || settings.jwks.keys.length),
  clientAuthMethods: ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"],
  scopes: ["openid", "offline_access", ...SCOPES.split(" ")],
  features: {
    clientCredentials: { enabled: true },
    clientIdMetadataDocument: {
      enabled: true,
      ack: "draft-02",
      allowFetch: () => true,
      allowClient: () => true,
    },
    deviceFlow: { enabled: true },
    devInteractions: { enabled: false },
    registration: { enabled: true },
    revocation: { enabled: true, allowedPolicy: () => true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_, indicator) => {
        if (indicator !== resource) throw new errors.InvalidTarget();
        return { scope: SCOPES, accessTokenTTL: settings.ttl };
      },
      useGrantedResource: () => true,
    },
  },
  fetch: async (url) =>
    String(url) === CLIENT_DOCUMENT
      ? new Response(JSON.stringify(document), { headers: { "content-type": "application/json" } })
      : Response.error(),
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  interactions: { url: (_, interaction) => `/login/${interaction.uid}` },
  rotateRefreshToken: settings.rotate,
  ttl: { AccessToken: settings.ttl, RefreshToken: 3600, Grant: 3600, Session: 3600, ClientCredentials: settings.ttl },
});

for (const event of ["grant.success", "grant.error"]) {
  provider.on(event, (ctx, error) => {
    const { grant_type: type } = ctx.oidc.params ?? {};
    if (event === "grant.success") ledger.grants.push(type), ledger.at.push(Date.now() / 1000);
    else ledger.refused.push(`${type}: ${error?.error}`);
  });
}
provider.on("grant.revoked", () => (ledger.revoked += 1));
provider.on("registration_create.success", (_, client) => ledger.registered.push(client.metadata()));

async function login(request, response) {
  const { params, prompt, session, grantId } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    const result = { login: { accountId: request.headers["x-user"] ?? "somebody" } };
    return provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
  }
  const grant =
    (grantId && (await provider.Grant.find(grantId))) ||
    new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope, missingResourceScopes } = prompt.details;
  if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(" "));
  for (const [of, scopes] of Object.entries(missingResourceScopes ?? {})) grant.addResourceScope(of, scopes.join(" "));
  const consent = { grantId: await grant.save() };
  return provider.interactionFinished(request, response, { consent }, { mergeWithLastSubmission: true });
}

function send(response, status, body, headers = {}) {
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body));
}

async function mcp(request, response) {
  request.resume();
  const metadata = `resource_metadata="${origin}/.well-known/oauth-protected-resource/mcp"`;
  const text = (request.headers.authorization ?? "").replace(/^Bearer /, "");
  const token = text && ((await provider.AccessToken.find(text)) ?? (await provider.ClientCredentials.find(text)));
  const refuse = (status, error, more = "") =>
    send(response, status, { error }, { "www-authenticate": `Bearer error="${error}"${more}, ${metadata}` });
  if (!token || token.isExpired) return refuse(401, "invalid_token", `, scope="files:read"`);
  if (token.aud !== resource) return refuse(401, "invalid_token");
  const wanted = new URL(request.url, origin).searchParams.get("scope");
  if (wanted && !token.scopes.has(wanted)) return refuse(403, "insufficient_scope", `, scope="${wanted}"`);
  return send(response, 200, { user: token.accountId ?? token.clientId, scopes: [...token.scopes] });
}

const callback = provider.callback();
server.on("request", async (request, response) => {
  const { pathname } = new URL(request.url, origin);
  try {
    if (pathname === "/ledger") send(response, 200, ledger);
    else if (pathname === "/mcp") await mcp(request, response);
    else if (pathname.startsWith("/login/")) await login(request, response);
    else if (pathname.startsWith("/.well-known/oauth-protected-resource"))
      send(response, 200, { resource, authorization_servers: [origin], scopes_supported: SCOPES.split(" ") });
    else await callback(request, response);
  } catch (error) {
    console.error(error);
    if (!response.headersSent) send(response, 500, { error: String(error) });
  }
});
console.error(`listening on port=${server.address().port}`);
