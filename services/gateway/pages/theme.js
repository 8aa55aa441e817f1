// Light, dark, or as the system has it until the reader chooses.

const STORED = "skipjoin-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

export function setUpTheme(button) {
  const current = () => localStorage.getItem(STORED) ?? (dark.matches ? "dark" : "light");
  const apply = () => {
    document.documentElement.dataset.theme = current();
    button.textContent = current() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to the ${button.textContent.toLowerCase()} theme`);
  };
  button.addEventListener("click", () => {
    localStorage.setItem(STORED, current() === "dark" ? "light" : "dark");
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}
