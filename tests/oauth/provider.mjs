// An authorization server (oidc-provider) and a protected resource, on one port of this machine.
// `node provider.mjs` with SETTINGS, a JSON object: ttl (seconds of an access token), rotate, jwks
// (of the service that signs), upstream (the URL of an MCP server), needs (by tool, the scope that its
// calls need there), mark (the beginning of every token and code), format
// ("jwt" for access tokens that say what they are). GET /ledger tells what the token
// endpoint has done, and whose calls went on. POST /outage?seconds=1 has the token endpoint answer 503,
// POST /revoke?user=ann ends all grants of a person, POST /expire?user=ann their access tokens only.
// A person is whoever the request to the login page names in its header x-user.

import http from "node:http";

import Provider, { errors } from "oidc-provider";

const settings = { ttl: 3600, rotate: true, jwks: { keys: [] }, needs: {}, ...JSON.parse(process.env.SETTINGS ?? "{}") };
const CLIENT_DOCUMENT = "https://client.example/oauth/toolkeep.json";
const SCOPES = "files:read files:write";
const ledger = { grants: [], at: [], refused: [], revoked: 0, registered: [], calls: {}, foreign: [], outages: 0 };
const grantsOf = new Map();
const tokensOf = new Map();
let outageUntil = 0;

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
        return { scope: SCOPES, accessTokenTTL: settings.ttl, accessTokenFormat: settings.format };
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
    const { AccessToken: made } = ctx.oidc.entities;
    for (const [map, id] of [[grantsOf, made?.grantId], [tokensOf, made?.jti]])
      if (made?.accountId) map.set(made.accountId, [...(map.get(made.accountId) ?? []), id]);
    if (event === "grant.success") ledger.grants.push(type), ledger.at.push(Date.now() / 1000);
    else ledger.refused.push(`${type}: ${error?.error}`);
  });
}
provider.on("grant.revoked", () => (ledger.revoked += 1));
provider.on("registration_create.success", (_, client) => ledger.registered.push(client.metadata()));

if (settings.mark)
  for (const kind of [provider.AccessToken, provider.RefreshToken, provider.AuthorizationCode]) {
    const { generateTokenId } = kind.prototype;
    kind.prototype.generateTokenId = function (...given) {
      return settings.mark + generateTokenId.apply(this, given);
    };
  }

async function revoke(user) {
  for (const grantId of new Set(grantsOf.get(user))) {
    await (await provider.Grant.find(grantId))?.destroy();
    for (const kind of [provider.AccessToken, provider.RefreshToken, provider.AuthorizationCode])
      await kind.revokeByGrantId(grantId);
  }
  grantsOf.delete(user);
}

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

// With settings.upstream, a request with a valid token goes on to that MCP server, with x-user.
function forward(request, response, body, user) {
  const to = new URL(settings.upstream);
  const headers = { ...request.headers, host: to.host, "x-user": user };
  delete headers.authorization; // the token is for this server, and for none behind it
  const { method } = request;
  const out = http.request({ host: to.hostname, port: to.port, path: to.pathname, method, headers });
  out.on("response", (answer) => response.writeHead(answer.statusCode, answer.headers) && answer.pipe(response));
  out.on("error", () => response.destroy());
  response.on("close", () => out.destroy());
  out.end(body);
}

async function mcp(request, response) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks);
  const metadata = `resource_metadata="${origin}/.well-known/oauth-protected-resource/mcp"`;
  const text = (request.headers.authorization ?? "").replace(/^Bearer /, "");
  const token = text && ((await provider.AccessToken.find(text)) ?? (await provider.ClientCredentials.find(text)));
  const refuse = (status, error, more = "") =>
    send(response, status, { error }, { "www-authenticate": `Bearer error="${error}"${more}, ${metadata}` });
  if (!token || token.isExpired) return refuse(401, "invalid_token", `, scope="files:read"`);
  if (token.aud !== resource) return refuse(401, "invalid_token");
  const wanted = new URL(request.url, origin).searchParams.get("scope");
  if (wanted && !token.scopes.has(wanted)) return refuse(403, "insufficient_scope", `, scope="${wanted}"`);
  if (settings.upstream) {
    const needed = settings.needs[body.length ? JSON.parse(body).params?.name : ""];
    if (needed && !token.scopes.has(needed)) return refuse(403, "insufficient_scope", `, scope="${needed}"`);
    const user = token.accountId ?? token.clientId;
    if (body.includes('"tools/call"')) ledger.calls[user] = (ledger.calls[user] ?? 0) + 1;
    const meant = request.headers["x-meant-for"];
    if (meant && meant !== user) ledger.foreign.push(`${meant} came with the token of ${user}`);
    return forward(request, response, body, user);
  }
  return send(response, 200, { user: token.accountId ?? token.clientId, scopes: [...token.scopes] });
}

const callback = provider.callback();
server.on("request", async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, origin);
  try {
    if (pathname === "/ledger") send(response, 200, ledger);
    else if (pathname === "/outage") {
      outageUntil = Date.now() + 1000 * Number(searchParams.get("seconds"));
      send(response, 200, {});
    } else if (pathname === "/revoke") {
      await revoke(searchParams.get("user"));
      send(response, 200, {});
    } else if (pathname === "/expire") {
      for (const jti of tokensOf.get(searchParams.get("user")) ?? []) await (await provider.AccessToken.find(jti))?.destroy();
      send(response, 200, {});
    } else if (pathname === "/token" && Date.now() < outageUntil) {
      ledger.outages += 1;
      send(response, 503, { error: "temporarily_unavailable" });
    } else if (pathname === "/mcp") await mcp(request, response);
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
