// A button on each block that can be pasted. Of a console block it copies the commands alone.
const pasted = (block) => {
  const text = block.querySelector("pre").textContent;
  if (!block.matches(".highlight-console, .highlight-pycon")) return text;
  const typed = text.split("\n").filter((line) => /^(\$|>>>|\.\.\.)( |$)/.test(line));
  return typed.map((line) => line.replace(/^(\$|>>>|\.\.\.) ?/, "")).join("\n") + "\n";
};

document.addEventListener("DOMContentLoaded", () => {
  const blocks = "python console pycon sh json toml ini markdown".split(" ");
  for (const block of document.querySelectorAll(blocks.map((one) => `.highlight-${one}`).join())) {
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(pasted(block));
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
    block.prepend(button);
  }
});
