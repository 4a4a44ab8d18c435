/** A cursor is the sort key of the last entry of a page. */
export const encode = (values) => Buffer.from(JSON.stringify(values)).toString("base64url");

export function decode(cursor, types) {
  try {
    const values = JSON.parse(Buffer.from(cursor, "base64url").toString());
    if (types.every((type, at) => typeof values[at] === type)) return values;
  } catch {
    // Not one of ours either.
  }
  throw new Error("The cursor does not belong to this list.");
}
