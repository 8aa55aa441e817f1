// The API's description in Swagger UI. The document may need a key, so it is fetched here.

import { ask, setKey, storedKey } from "./api.js";

const access = document.getElementById("access");
const problem = document.getElementById("problem");
document.getElementById("key").value = storedKey();
access.addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(document.getElementById("key").value);
  show();
});
show();

async function show() {
  try {
    const spec = await (await ask("/openapi.json")).json();
    problem.hidden = true;
    window.SwaggerUIBundle({
      spec,
      dom_id: "#document",
      deepLinking: true,
      validatorUrl: null,
      requestInterceptor: (request) => {
        if (storedKey()) request.headers.Authorization ??= `Bearer ${storedKey()}`;
        return request;
      },
    });
  } catch (error) {
    access.hidden = error.status !== 401;
    problem.textContent = error.message;
    problem.hidden = error.status === 401 && !storedKey();
  }
}
