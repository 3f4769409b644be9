// Given to node with --import: whatever listens does so on this machine alone, and says where.
import net from "node:net";

const listen = net.Server.prototype.listen;

net.Server.prototype.listen = function (port, ...rest) {
  this.once("listening", () => console.error(`listening on port=${this.address().port}`));
  return listen.call(this, { port: Number(port), host: "127.0.0.1" }, ...rest);
};
