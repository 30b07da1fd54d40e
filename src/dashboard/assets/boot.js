'use strict';
// Loads the modules from below the path that the browser shows, which a proxy may have changed, with or without a slash at its
// end.
import(`${location.pathname.replace(/\/*$/, '')}/assets/app.mjs`);
