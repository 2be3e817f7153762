/**
 * Pre-token-generation trigger of a Cognito user pool, event version V2_0 or V3_0: adds `custom:scopes` and a confirmed
 * `email` to the access token.
 */
export const handler = async (event) => {
  // The event of a client-credentials grant (V3_0) has no user.
  const attributes = event.request.userAttributes ?? {}
  const claims = {}

  // One string, as stored. The service refuses a list.
  if (attributes['custom:scopes']) claims['custom:scopes'] = attributes['custom:scopes']
  // Pass on only an e-mail address that the user has confirmed.
  if (attributes.email && attributes.email_verified === 'true') claims.email = attributes.email

  event.response = {
    claimsAndScopeOverrideDetails: {
      accessTokenGeneration: { claimsToAddOrOverride: claims },
    },
  }
  return event
}
