// Prints the client address that Express (`trust proxy`) and express-rate-limit find in each request on stdin.
//
// `spoof --express DIR` runs this script and writes the requests as JSON. DIR holds node_modules with both packages.
"use strict";

const { createRequire } = require("node:module");
const path = require("node:path");

const load = createRequire(path.join(path.resolve(process.argv[2]), "index.js"));
const { compileTrust } = load("express/lib/utils.js");
const proxyAddress = load("proxy-addr");
const { ipKeyGenerator } = load("express-rate-limit");

const cases = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
for (const { trust, peer, lines } of cases) {
  let key;
  try {
    const headers = lines.length > 0 ? { "x-forwarded-for": lines.join(", ") } : {};
    const ip = proxyAddress({ headers, socket: { remoteAddress: peer } }, compileTrust(trust));
    // `false` turns off the grouping of IPv6 addresses, so that addresses can be compared.
    key = ipKeyGenerator(ip, false);
  } catch {
    key = "refused";
  }
  console.log(JSON.stringify(key));
}
