// An OIDC provider on the loopback with 1 public client, for tests: node oidc_provider.mjs MODULE PORT CLIENT
import { pathToFileURL } from 'node:url';

const [, , modulePath, port, client] = process.argv;
const { Provider } = await import(pathToFileURL(modulePath));
const issuer = `http://127.0.0.1:${port}`;
const provider = new Provider(issuer, {
  clients: [{
    client_id: client,
    token_endpoint_auth_method: 'none',
    application_type: 'native',
    grant_types: ['urn:ietf:params:oauth:grant-type:device_code'],
    response_types: [],
    redirect_uris: [],
  }],
  claims: { openid: ['sub'], profile: ['preferred_username', 'groups'], email: ['email'] },
  conformIdTokenClaims: false,
  features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
  cookies: { keys: ['for tests only'] },
  findAccount: (ctx, sub) => ({
    accountId: sub,
    claims: () => ({ sub, preferred_username: sub, groups: sub === 'ada' ? ['gpu-admins'] : ['staff'] }),
  }),
});
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'));
